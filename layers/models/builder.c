/* SPDX-License-Identifier: Apache-2.0 */
/* Adding layers in a row. */
#include "layers/models/builder.h"

#include <stdarg.h>
#include <stdio.h>

void sl_builder_begin(sl_builder_t *b, const char *name,
                      const sl_tensor_desc_t *data,
                      const sl_tensor_desc_t *target)
{
    b->model = NULL;
    b->last = SL_INPUT_DATA;
    b->status = sl_model_create(name, data, target, &b->model);
}

int sl_builder_add(sl_builder_t *b, const char *type, int a, int second,
                   const sl_attr_t *attrs, size_t n_attrs, const char *name_fmt,
                   ...)
{
    sl_layer_spec_t spec = {.type = type,
                            .n_inputs = second == SL_BUILDER_NONE ? 1 : 2,
                            .inputs = {a, second},
                            .attrs = attrs,
                            .n_attrs = n_attrs};
    char name[128];
    va_list args;

    if (b->status < 0) {
        return b->last;
    }
    va_start(args, name_fmt);
    (void)vsnprintf(name, sizeof(name), name_fmt, args);
    va_end(args);
    spec.name = name;
    b->status = sl_model_add(b->model, &spec, &b->last);
    return b->last;
}

sl_status_t sl_builder_end(sl_builder_t *b, sl_model_t **model_p)
{
    if (b->status >= 0) {
        b->status = sl_model_check(b->model);
    }
    if (b->status < 0) {
        sl_model_destroy(b->model);
        return b->status;
    }
    *model_p = b->model;
    return SL_OK;
}
