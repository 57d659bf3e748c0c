"""What is known of torch's operators: the rules of the software graph."""
