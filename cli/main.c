/* SPDX-License-Identifier: Apache-2.0 */
/* The program `sluice`: finds the subcommand. */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"

#ifndef SL_VERSION
#error "SL_VERSION comes from the build"
#endif

static const sl_command_t commands[] = {
#define X(name, brief) {#name, brief, sl_command_##name},
    SL_COMMAND_MAP(X)
#undef X
};

enum {
    N_COMMANDS = sizeof(commands) / sizeof(*commands)
};

static void print_help(FILE *out)
{
    int i;

    (void)fprintf(out, "Usage: sluice COMMAND [OPTION...] CONFIG\n"
                       "Train a model over several devices.\n\n");
    for (i = 0; i < N_COMMANDS; i++) {
        (void)fprintf(out, "  %-11s %s\n", commands[i].name, commands[i].brief);
    }
    (void)fprintf(out, "\n`sluice COMMAND --help` lists a command's options; "
                       "`sluice --version` the version.\n");
}

int main(int argc, char **argv)
{
    int i;

    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-?") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        (void)printf("sluice %s\n", SL_VERSION);
        return 0;
    }
    for (i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    (void)fprintf(stderr, "sluice: there is no command '%s'\n\n", argv[1]);
    print_help(stderr);
    return 2;
}
