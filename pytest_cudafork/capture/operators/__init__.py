"""What is known of the operators of torch and of CUDA: rules that both backends go by."""
