"""What the history of memory says of captured graphs: computing again, rules, findings.

Nothing is imported here; the modules below import torch.
"""
