/* SPDX-License-Identifier: Apache-2.0 */
/* The wish to end a run early. */
#include "cli/train_signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

/* Set in a signal handler, read by several threads. */
static atomic_int is_stop;
static atomic_llong first_ms; /* of the signal that set it; 0 = none */

/* A batch system may send one warning twice, to the process and to its group;
 * what comes so soon is no second wish. */
static const long long SAME_MS = 200;

static void on_signal(int number)
{
    struct timespec now;
    long long now_ms, none = 0;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    now_ms = (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000 + 1;
    if (!atomic_compare_exchange_strong(&first_ms, &none, now_ms) &&
        now_ms - none > SAME_MS) {
        (void)signal(number, SIG_DFL);
        (void)raise(number); /* acts when this handler returns */
    }
    atomic_store(&is_stop, 1);
}

static void catch_one(int number)
{
    struct sigaction action;

    memset(&action, 0, sizeof(action));
    action.sa_handler = on_signal;
    (void)sigaction(number, &action, NULL);
}

void sl_train_signals_catch_warning(void)
{
    catch_one(SIGUSR1);
}

void sl_train_signals_catch(void)
{
    catch_one(SIGINT);
    catch_one(SIGTERM);
    catch_one(SIGUSR1);
}

void sl_train_signals_stop(void *ctx)
{
    (void)ctx;
    atomic_store(&is_stop, 1);
}

int sl_train_signals_is_stop(void *world)
{
    return atomic_load(&is_stop) || sl_world_is_wished(world);
}

static int is_own_wish(void *ctx)
{
    (void)ctx;
    return atomic_load(&is_stop);
}

void sl_train_signals_share(sl_world_t *world)
{
    sl_world_wish_set(world, is_own_wish, NULL);
}
