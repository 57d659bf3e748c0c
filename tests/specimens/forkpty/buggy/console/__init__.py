"""A variation on glotzerlab/signac-flow#115: the process that has used CUDA forks by pty.fork(), to give its
child a terminal, and nothing in the line says fork to a reader."""
