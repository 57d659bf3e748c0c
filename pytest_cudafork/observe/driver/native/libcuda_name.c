/* The phantom by the driver's other name, libcuda.so, by which much code in Python asks for it. The
 * loader finds a library by the name that it was built with, so this is one more library: it has
 * nothing of its own and needs libcuda.so.1, where its users find every symbol.
 */
