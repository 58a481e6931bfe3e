/* SPDX-License-Identifier: Apache-2.0 */
/* What differs between a checkpoint and the run that wants to go on. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "engine/checkpoint/checkpoint_internal.h"

enum {
    DETAIL_BYTES = 700, /* of the differences that are told at once */
    MAX_NAMED = 4
};

/* Differences as one text; only the first few are named. */
typedef struct sl_differences {
    char text[DETAIL_BYTES];
    size_t used;
    int n;
} sl_differences_t;

static void tell(sl_differences_t *to, const char *name, const char *have,
                 const char *want)
{
    const size_t room = sizeof(to->text) - to->used;
    int n;

    if (to->n++ >= MAX_NAMED) {
        return;
    }
    n = snprintf(to->text + to->used, room,
                 "%s%s is %.160s there and %.160s here",
                 to->used == 0 ? "" : "; ", name, have, want);
    if (n > 0) {
        to->used += (size_t)n < room ? (size_t)n : room - 1;
    }
}

static int is_refused(sl_setting_rule_t rule, sl_resume_kind_t kind)
{
    if (kind == SL_RESUME_WEIGHTS) {
        return 0;
    }
    return rule == SL_SETTING_MUST ||
           (rule == SL_SETTING_EXACT && kind == SL_RESUME_EXACT);
}

static int is_told(sl_setting_rule_t rule, sl_resume_kind_t kind)
{
    return kind != SL_RESUME_WEIGHTS && rule != SL_SETTING_TOLD;
}

static void compare_settings(const sl_run_description_t *d,
                             const sl_manifest_t *manifest,
                             sl_resume_kind_t kind, sl_differences_t *refused,
                             sl_differences_t *told)
{
    size_t i;

    for (i = 0; i < d->n_settings; i++) {
        const sl_setting_t *own = &d->settings[i];
        const char *have = sl_manifest_setting(manifest, own->name);

        if (have == NULL || strcmp(have, own->value) == 0) {
            continue;
        }
        if (is_refused(own->rule, kind)) {
            tell(refused, own->name, have, own->value);
        } else if (is_told(own->rule, kind)) {
            tell(told, own->name, have, own->value);
        }
    }
}

/* Whether tensors fit is found out later, by their shapes. */
static void compare_layers(const sl_run_description_t *d,
                           const sl_manifest_t *manifest, sl_resume_kind_t kind,
                           sl_differences_t *refused, sl_differences_t *told)
{
    sl_differences_t *to = kind == SL_RESUME_EXACT ? refused : told;
    char have[32], want[32];
    size_t i;

    if (kind == SL_RESUME_WEIGHTS) {
        return;
    }
    if (manifest->n_layers != d->n_layers) {
        (void)snprintf(have, sizeof(have), "%zu", manifest->n_layers);
        (void)snprintf(want, sizeof(want), "%zu", d->n_layers);
        tell(to, "the number of layers", have, want);
    }
    for (i = 0; i < d->n_layers && i < manifest->n_layers; i++) {
        if (strcmp(manifest->layers[i], d->layers[i]) != 0) {
            char name[32];

            (void)snprintf(name, sizeof(name), "layer %zu", i);
            tell(to, name, manifest->layers[i], d->layers[i]);
            break; /* those after it are likely to differ for that reason */
        }
    }
}

sl_status_t sl_run_compare(const char *what, const sl_run_description_t *d,
                           const sl_manifest_t *manifest, sl_resume_kind_t kind)
{
    sl_differences_t refused = {.n = 0}, told = {.n = 0};
    sl_status_t status;

    compare_layers(d, manifest, kind, &refused, &told);
    compare_settings(d, manifest, kind, &refused, &told);
    if (refused.n > 0) {
        SL_REFUSE(status, SL_ERR_CONFIG, out,
                  "%s is of another run: %s%s; use the same settings, start "
                  "from its weights only, or allow changed settings",
                  what, refused.text,
                  refused.n > MAX_NAMED ? "; and more" : "");
    }
    if (told.n > 0 && d->rank == 0) {
        sl_warn("%s: the run goes on, but not with the same bits: %s%s", what,
                told.text, told.n > MAX_NAMED ? "; and more" : "");
    }
    return SL_OK;
out:
    return status;
}
