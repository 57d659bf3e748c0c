"""The doctor: what of this machine and environment changes what CUDA and forks do here."""
