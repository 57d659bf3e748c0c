"""How memory came to hold what it holds, and what captured graphs use; no judgement.

Nothing is imported here; the modules below import torch.
"""
