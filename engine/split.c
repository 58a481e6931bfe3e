/* SPDX-License-Identifier: Apache-2.0 */
/* A mini-batch into micro-batches. */
#include "engine/engine.h"

static int64_t n_parts(int64_t rows, int n)
{
    return rows < n ? rows : n;
}

int64_t sl_split_rows(int64_t rows, int n, int m, int *n_p)
{
    const int64_t parts = n_parts(rows, n);

    if (n_p != NULL) {
        *n_p = (int)parts;
    }
    return m < parts ? rows / parts + (m < rows % parts) : 0;
}

int64_t sl_split_first(int64_t rows, int n, int m)
{
    const int64_t parts = n_parts(rows, n);
    const int64_t larger = parts > 0 ? rows % parts : 0;

    return parts == 0 ? 0 : m * (rows / parts) + (m < larger ? m : larger);
}
