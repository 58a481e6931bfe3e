/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory of the stand-in itself. A test may make every allocation of our
 * code fail, through names that the linker replaces; the driver's own are not
 * meant, so they are looked up when the program runs. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* the stand-in is compiled with these names for the plain ones */
#undef malloc
#undef calloc
#undef realloc
#undef aligned_alloc

void *standin_malloc(size_t bytes);
void *standin_calloc(size_t n, size_t bytes);
void *standin_realloc(void *old, size_t bytes);
void *standin_aligned_alloc(size_t alignment, size_t bytes);

static void *(*real_malloc)(size_t);
static void *(*real_calloc)(size_t, size_t);
static void *(*real_realloc)(void *, size_t);
static void *(*real_aligned_alloc)(size_t, size_t);
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void look_up(void)
{
    void *program = dlopen(NULL, RTLD_LAZY);
    const struct {
        const char *name;
        void *to;
    } names[] = {{"malloc", &real_malloc},
                 {"calloc", &real_calloc},
                 {"realloc", &real_realloc},
                 {"aligned_alloc", &real_aligned_alloc}};
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(*names); i++) {
        void *found = program == NULL ? NULL : dlsym(program, names[i].name);

        if (found == NULL) {
            abort();
        }
        memcpy(names[i].to, &found, sizeof(found));
    }
}

void *standin_malloc(size_t bytes)
{
    (void)pthread_once(&once, look_up);
    return real_malloc(bytes);
}

void *standin_calloc(size_t n, size_t bytes)
{
    (void)pthread_once(&once, look_up);
    return real_calloc(n, bytes);
}

void *standin_realloc(void *old, size_t bytes)
{
    (void)pthread_once(&once, look_up);
    return real_realloc(old, bytes);
}

void *standin_aligned_alloc(size_t alignment, size_t bytes)
{
    (void)pthread_once(&once, look_up);
    return real_aligned_alloc(alignment, bytes);
}
