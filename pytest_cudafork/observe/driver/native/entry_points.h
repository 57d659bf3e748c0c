/* The driver's entry points by name, and its error codes. */
#ifndef CUDAFORK_ENTRY_POINTS_H
#define CUDAFORK_ENTRY_POINTS_H

/* CUdriverProcAddressQueryResult */
enum proc_status { PROC_FOUND = 0, PROC_NOT_FOUND = 1, PROC_TOO_NEW = 2 };

enum proc_status find_entry_point(const char *name, int version, int per_thread, void **found);

/* Returns 0 for a code that CUDA does not have. */
int find_error(int code, const char **name, const char **words);

/* The answer of an entry point that the phantom does not have; phantom_driver.c. */
int phantom_refuse(const char *entry);

#endif
