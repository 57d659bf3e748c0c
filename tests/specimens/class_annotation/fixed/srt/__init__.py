"""Stands for sgl-project/sglang#40201: the annotation of a dataclass field is evaluated in the class body,
and looks up the stream type of whatever device there is."""
