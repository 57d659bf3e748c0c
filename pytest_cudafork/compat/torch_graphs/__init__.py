"""What checks of graphs use of torch that has no public name.

Like the modules of ``capture``, which alone import it, it is imported when a test captures a graph,
as it imports torch. Names that some releases lack are asked for where they are used; what is done
without them is said there.
"""
