"""Who imports whom: the graph of a package, the edges to cut, its picture."""
