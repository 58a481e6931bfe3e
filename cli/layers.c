/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice layers`: the layer and model types a config may name, with their
 * attributes, straight from the tables that read them. */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "layers/layers.h"

static void print_fallback(const sl_attr_def_t *def)
{
    if (def->is_required) {
        (void)printf("required");
        return;
    }
    switch (def->kind) {
    case SL_ATTR_INT:
    case SL_ATTR_FLOAT:
        (void)printf("%g", def->fallback);
        break;
    case SL_ATTR_BOOL:
        (void)printf(def->fallback != 0.0 ? "true" : "false");
        break;
    case SL_ATTR_CHOICE:
        (void)printf("%.*s", (int)strcspn(def->choices, "|"), def->choices);
        break;
    case SL_ATTR_TEXT:
        (void)printf("none");
        break;
    }
}

static void print_type(const char *name, const char *brief,
                       const sl_attr_def_t *def)
{
    (void)printf("%s: %s\n", name, brief);
    for (; def != NULL && def->name != NULL; def++) {
        (void)printf("  %-18s ", def->name);
        if (def->kind == SL_ATTR_CHOICE) {
            (void)printf("%s", def->choices);
        } else if (def->kind == SL_ATTR_BOOL) {
            (void)printf("true|false");
        } else if (def->kind == SL_ATTR_TEXT) {
            (void)printf("text");
        } else {
            (void)printf("%g..%g", def->min, def->max);
        }
        (void)printf(" (");
        print_fallback(def);
        (void)printf(") %s\n", def->brief == NULL ? "" : def->brief);
    }
}

static int print_all(const char *wanted)
{
    const sl_model_ops_t *model;
    const sl_layer_ops_t *layer;
    int n = 0;
    size_t i;

    for (i = 0; (model = sl_model_ops_builtin(i)) != NULL; i++) {
        if (wanted == NULL || strcmp(wanted, model->name) == 0) {
            (void)printf("model ");
            print_type(model->name, model->brief, model->attr_defs);
            n++;
        }
    }
    for (i = 0; (layer = sl_layer_builtin(i)) != NULL; i++) {
        if (wanted == NULL || strcmp(wanted, layer->name) == 0) {
            (void)printf("layer ");
            print_type(layer->name, layer->brief, layer->attr_defs);
            n++;
        }
    }
    return n;
}

int sl_command_layers(int argc, char **argv)
{
    const char *usage = "Usage: sluice layers [TYPE]\nList layer and model "
                        "types with their attributes: range (default) "
                        "meaning.\n";

    if (argc > 2) {
        (void)fputs(usage, stderr);
        return 2;
    }
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        (void)fputs(usage, stdout);
        return 0;
    }
    if (print_all(argc == 2 ? argv[1] : NULL) == 0) {
        (void)fprintf(stderr, "sluice: there is no layer or model type '%s'\n",
                      argv[1]);
        return 2;
    }
    return 0;
}
