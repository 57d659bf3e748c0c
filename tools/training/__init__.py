"""How the tiny model and its draft head are made: corpus, training, evaluation, model card.

Nothing of the engine imports this package.
"""
