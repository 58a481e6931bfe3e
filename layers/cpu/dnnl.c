/* SPDX-License-Identifier: Apache-2.0 */
/* oneDNN behind our own few types: errors, engine, layouts, and ops from
 * their primitive descriptor on. */
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "layers/cpu/dnnl_internal.h"

enum {
    SLOT_SCRATCH = SL_DNNL_N_TENSORS,
    N_SLOTS
};

struct sl_dnnl_op {
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    dnnl_stream_t stream;
    dnnl_memory_t memory[N_SLOTS]; /* NULL: the op has no such argument */
    int arg[N_SLOTS];              /* oneDNN's argument index */
    sl_dnnl_format_t weights;      /* no md: the op has none */
    size_t scratch_bytes;
    int n_threads;
};

/* ---- errors, engine, attributes ---- */

int64_t sl_dnnl_channel_block(void)
{
    static atomic_int block; /* atomic; 0 = not asked yet */
    int value = atomic_load_explicit(&block, memory_order_relaxed);

    if (value == 0) {
        /* the value is a set of features */
        const unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
        const unsigned wide = (unsigned)dnnl_cpu_isa_avx512_core;

        value = (isa & wide) == wide ? 16 : 8;
        atomic_store_explicit(&block, value, memory_order_relaxed);
    }
    return value;
}

static const char *code_text(dnnl_status_t code)
{
    switch ((int)code) {
    case dnnl_success:
        return "success";
    case dnnl_out_of_memory:
        return "out of memory";
    case dnnl_invalid_arguments:
        return "invalid arguments";
    case dnnl_unimplemented:
        return "unimplemented";
    case dnnl_runtime_error:
        return "runtime error";
    case dnnl_not_required:
        return "not required";
    default:
        return "unknown code";
    }
}

sl_status_t sl_dnnl_status(dnnl_status_t code, const char *what)
{
    sl_status_t status;

    if (code == dnnl_success) {
        return SL_OK;
    }
    if (code == dnnl_unimplemented) {
        SL_REFUSE(status, SL_ERR_UNSUPPORTED, out, "oneDNN has no %s", what);
    }
    if (code == dnnl_out_of_memory) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "oneDNN %s: no host memory",
                what);
    }
    SL_FAIL(status, SL_ERR_DEVICE, out, "oneDNN %s: code %d, %s", what,
            (int)code, code_text(code));
out:
    return status;
}

static pthread_once_t engine_once = PTHREAD_ONCE_INIT;
static dnnl_engine_t engine;
static dnnl_status_t engine_code;

/* Lives as long as the process: primitives of any thread refer to it. */
static void engine_init(void)
{
    engine_code = dnnl_engine_create(&engine, dnnl_cpu, 0);
}

sl_status_t sl_dnnl_engine(dnnl_engine_t *engine_p)
{
    (void)pthread_once(&engine_once, engine_init);
    if (engine_code != dnnl_success) {
        return sl_dnnl_status(engine_code, "engine");
    }
    *engine_p = engine;
    return SL_OK;
}

dnnl_status_t sl_dnnl_attr_create(dnnl_primitive_attr_t *attr_p)
{
    dnnl_primitive_attr_t attr;
    dnnl_status_t code = dnnl_primitive_attr_create(&attr);

    if (code != dnnl_success) {
        return code;
    }
    code = dnnl_primitive_attr_set_scratchpad_mode(attr,
                                                   dnnl_scratchpad_mode_user);
    if (code != dnnl_success) {
        (void)dnnl_primitive_attr_destroy(attr);
        return code;
    }
    *attr_p = attr;
    return dnnl_success;
}

int sl_dnnl_set_threads(int n_threads)
{
    const int had_threads = omp_get_max_threads();

    if (had_threads != n_threads) {
        omp_set_num_threads(n_threads);
    }
    return had_threads;
}

/* ---- layouts ---- */

void sl_dnnl_md_destroy(sl_dnnl_md_t md)
{
    if (md != NULL) {
        (void)dnnl_memory_desc_destroy(md);
    }
}

static dnnl_format_tag_t image_tag(sl_layout_t layout)
{
    if (layout == SL_LAYOUT_PLAIN) {
        return dnnl_nchw;
    }
    return sl_channel_block() == 16 ? dnnl_nChw16c : dnnl_nChw8c;
}

dnnl_status_t sl_dnnl_md_image(int64_t batch, int64_t channels, int64_t height,
                               int64_t width, sl_layout_t layout,
                               sl_dnnl_md_t *md_p)
{
    const dnnl_dims_t dims = {batch, channels, height, width};

    return dnnl_memory_desc_create_with_tag(md_p, 4, dims, dnnl_f32,
                                            image_tag(layout));
}

sl_status_t sl_dnnl_format_create(sl_dnnl_md_t give_md,
                                  sl_dnnl_format_t **format_p)
{
    sl_dnnl_format_t *format = calloc(1, sizeof(*format));
    sl_status_t status = SL_OK;

    if (format == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "memory layout: no host memory");
    }
    format->md = give_md;
    *format_p = format;
out:
    return status;
}

sl_status_t sl_dnnl_format_image(const sl_tensor_desc_t *desc,
                                 sl_dnnl_format_t **format_p)
{
    sl_dnnl_md_t md = NULL;
    sl_status_t status;

    SL_TRY(status,
           sl_dnnl_status(sl_dnnl_md_image(desc->dims[0], desc->dims[1],
                                           desc->dims[2], desc->dims[3],
                                           desc->layout, &md),
                          "image layout"),
           out);
    SL_TRY(status, sl_dnnl_format_create(md, format_p), err_destroy);
    return SL_OK;

err_destroy:
    sl_dnnl_md_destroy(md);
out:
    return status;
}

void sl_dnnl_format_destroy(sl_dnnl_format_t *format)
{
    if (format != NULL) {
        sl_dnnl_md_destroy(format->md);
        free(format);
    }
}

size_t sl_dnnl_format_bytes(const sl_dnnl_format_t *format)
{
    return dnnl_memory_desc_get_size(format->md);
}

int sl_dnnl_format_is_equal(const sl_dnnl_format_t *a,
                            const sl_dnnl_format_t *b)
{
    return dnnl_memory_desc_equal(a->md, b->md);
}

/* ---- ops ---- */

void sl_dnnl_op_destroy(sl_dnnl_op_t *op)
{
    int i;

    if (op == NULL) {
        return;
    }
    for (i = 0; i < N_SLOTS; i++) {
        if (op->memory[i] != NULL) {
            (void)dnnl_memory_destroy(op->memory[i]);
        }
    }
    if (op->stream != NULL) {
        (void)dnnl_stream_destroy(op->stream);
    }
    if (op->primitive != NULL) {
        (void)dnnl_primitive_destroy(op->primitive);
    }
    sl_dnnl_md_destroy(op->weights.md);
    (void)dnnl_primitive_desc_destroy(op->desc);
    free(op);
}

/* One argument of the primitive, with the layout that it chose. */
static dnnl_status_t slot_init(sl_dnnl_op_t *op, int slot, int arg)
{
    sl_dnnl_const_md_t md =
        dnnl_primitive_desc_query_md(op->desc, dnnl_query_exec_arg_md, arg);
    const size_t bytes = md != NULL ? dnnl_memory_desc_get_size(md) : 0;

    if (bytes == 0) {
        return dnnl_success;
    }
    op->arg[slot] = arg;
    if (slot == SLOT_SCRATCH) {
        op->scratch_bytes = bytes;
    }
    if (slot == SL_DNNL_WEIGHTS) {
        const dnnl_status_t code = dnnl_memory_desc_clone(&op->weights.md, md);

        if (code != dnnl_success) {
            return code;
        }
    }
    return dnnl_memory_create(&op->memory[slot], md, engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t op_init(sl_dnnl_op_t *op,
                             const int args[SL_DNNL_N_TENSORS])
{
    dnnl_status_t code = slot_init(op, SLOT_SCRATCH, DNNL_ARG_SCRATCHPAD);
    int i;

    for (i = 0; code == dnnl_success && i < SL_DNNL_N_TENSORS; i++) {
        if (args[i] != 0) {
            code = slot_init(op, i, args[i]);
        }
    }
    if (code == dnnl_success) {
        code = dnnl_primitive_create(&op->primitive, op->desc);
    }
    if (code == dnnl_success) {
        code = dnnl_stream_create(&op->stream, engine, dnnl_stream_in_order);
    }
    return code;
}

sl_status_t sl_dnnl_op_create(dnnl_primitive_desc_t give_pd,
                              const int args[SL_DNNL_N_TENSORS], int n_threads,
                              sl_dnnl_op_t **op_p)
{
    sl_dnnl_op_t *op = calloc(1, sizeof(*op));
    sl_status_t status;

    if (op == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_desc,
                "oneDNN op: no host memory");
    }
    op->desc = give_pd;
    op->n_threads = n_threads;
    SL_TRY(status, sl_dnnl_status(op_init(op, args), "primitive"), err_op);
    *op_p = op;
    return SL_OK;

err_op:
    sl_dnnl_op_destroy(op);
    return status;
err_desc:
    (void)dnnl_primitive_desc_destroy(give_pd);
    return status;
}

static dnnl_status_t reorder_pd(const sl_dnnl_format_t *from,
                                const sl_dnnl_format_t *to,
                                dnnl_primitive_desc_t *pd_p)
{
    dnnl_primitive_attr_t attr;
    dnnl_status_t code = sl_dnnl_attr_create(&attr);

    if (code != dnnl_success) {
        return code;
    }
    code = dnnl_reorder_primitive_desc_create(pd_p, from->md, engine, to->md,
                                              engine, attr);
    (void)dnnl_primitive_attr_destroy(attr);
    return code;
}

sl_status_t sl_dnnl_reorder_create(const sl_dnnl_format_t *from,
                                   const sl_dnnl_format_t *to, int n_threads,
                                   sl_dnnl_op_t **op_p)
{
    static const int args[SL_DNNL_N_TENSORS] = {
        [SL_DNNL_X] = DNNL_ARG_FROM, [SL_DNNL_Y] = DNNL_ARG_TO};
    const int had_threads = sl_dnnl_set_threads(n_threads);
    dnnl_primitive_desc_t pd = NULL;
    dnnl_engine_t cpu;
    sl_status_t status;

    SL_TRY(status, sl_dnnl_engine(&cpu), out);
    SL_TRY(status, sl_dnnl_status(reorder_pd(from, to, &pd), "layout change"),
           out);
    SL_TRY(status, sl_dnnl_op_create(pd, args, n_threads, op_p), out);
out:
    (void)sl_dnnl_set_threads(had_threads);
    return status;
}

size_t sl_dnnl_op_scratch_bytes(const sl_dnnl_op_t *op)
{
    return op->scratch_bytes;
}

const sl_dnnl_format_t *sl_dnnl_op_weights(const sl_dnnl_op_t *op)
{
    return &op->weights;
}

const char *sl_dnnl_op_code(const sl_dnnl_op_t *op)
{
    const char *code = NULL;

    if (dnnl_primitive_desc_query(op->desc, dnnl_query_impl_info_str, 0,
                                  (void *)&code) != dnnl_success) {
        return "unknown";
    }
    return code;
}

static sl_status_t execute(const sl_dnnl_op_t *op, const sl_dnnl_args_t *args)
{
    const void *const address[N_SLOTS] = {args->x, args->weights, args->bias,
                                          args->y, args->scratch};
    dnnl_exec_arg_t exec[N_SLOTS];
    sl_status_t status;
    int n = 0;
    int i;

    for (i = 0; i < N_SLOTS; i++) {
        if (op->memory[i] == NULL) {
            continue;
        }
        /* through an integer: oneDNN takes inputs without const */
        SL_TRY(status,
               sl_dnnl_status(dnnl_memory_set_data_handle(
                                  op->memory[i], (void *)(uintptr_t)address[i]),
                              "argument"),
               out);
        exec[n].arg = op->arg[i];
        exec[n].memory = op->memory[i];
        n++;
    }
    SL_TRY(status,
           sl_dnnl_status(
               dnnl_primitive_execute(op->primitive, op->stream, n, exec),
               "execution"),
           out);
    SL_TRY(status, sl_dnnl_status(dnnl_stream_wait(op->stream), "wait"), out);
out:
    return status;
}

/* The code was made for this many threads and no other. */
sl_status_t sl_dnnl_op_run(const sl_dnnl_op_t *op, const sl_dnnl_args_t *args)
{
    const int had_threads = sl_dnnl_set_threads(op->n_threads);
    const sl_status_t status = execute(op, args);

    (void)sl_dnnl_set_threads(had_threads);
    return status;
}
