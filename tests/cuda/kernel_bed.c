/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cuda/kernel_bed.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#ifdef SL_CUDA_STANDIN
#include "standin.h"
#endif

enum {
    MAX_ITEMS = 32768,
    GUARD_BYTES = 512, /* on each side */
    GUARD_BYTE = 0xa5,
    POISON_BYTE = 0xff,
    MAX_LAYERS = 512
};

typedef struct array {
    unsigned char *base;
    unsigned char *ptr;
    size_t bytes, whole_bytes;
} array_t;

static cudaStream_t stream;
static array_t arrays[MAX_ITEMS];
static int n_arrays;
static void *host[MAX_ITEMS];
static int n_host;
static bed_layer_t layers[MAX_LAYERS];
static int n_layers;

static void ok(cudaError_t error)
{
    if (error != cudaSuccess) {
        fail_msg("%s", cudaGetErrorName(error));
    }
}

void *bed_stream(void)
{
    return stream;
}

int bed_has_device(void)
{
    int n = 0;

    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        (void)fprintf(stderr, "no CUDA device\n");
        return 0;
    }
    return 1;
}

/* ---- host memory ---- */

static void *host_alloc(size_t bytes)
{
    assert_true(n_host < MAX_ITEMS);
    host[n_host] = calloc(1, bytes + 64);
    assert_non_null(host[n_host]);
    return host[n_host++];
}

float *bed_floats(size_t n)
{
    return host_alloc(n * sizeof(float));
}

double *bed_doubles(size_t n)
{
    return host_alloc(n * sizeof(double));
}

float *bed_random(size_t n, uint32_t seed, float scale)
{
    const sl_rng_t rng = sl_rng_at(1234, seed, 0, 0, 0);
    float *values = bed_floats(n);
    size_t i;

    sl_rng_normal(&rng, values, n);
    for (i = 0; i < n; i++) {
        values[i] *= scale;
    }
    return values;
}

/* ---- storage types, in double ---- */

static int fraction_bits(sl_cuda_type_t type)
{
    return type == SL_CUDA_F32 ? 23 : type == SL_CUDA_BF16 ? 7 : 10;
}

static int min_exponent(sl_cuda_type_t type)
{
    return type == SL_CUDA_F16 ? -14 : -126;
}

static double largest(sl_cuda_type_t type)
{
    return type == SL_CUDA_F32    ? 0x1.fffffep127
           : type == SL_CUDA_BF16 ? 0x1.fep127
                                  : 65504.0;
}

double bed_epsilon(sl_cuda_type_t type)
{
    return ldexp(1.0, -fraction_bits(type) - 1);
}

double bed_round(sl_cuda_type_t type, double value)
{
    double unit, rounded;
    int exponent;

    if (value == 0 || !isfinite(value)) {
        return value;
    }
    (void)frexp(value, &exponent);
    exponent -= 1;
    if (exponent < min_exponent(type)) {
        exponent = min_exponent(type);
    }
    unit = ldexp(1.0, exponent - fraction_bits(type));
    rounded = nearbyint(value / unit) * unit;
    return fabs(rounded) > largest(type) ? copysign(INFINITY, value) : rounded;
}

/* Bits of a number that the type can hold. */
static uint16_t encode(sl_cuda_type_t type, float value)
{
    uint32_t bits, sign;
    int exponent;
    double unit;

    memcpy(&bits, &value, sizeof(bits));
    if (type == SL_CUDA_BF16) {
        return (uint16_t)(bits >> 16);
    }
    sign = bits >> 16 & 0x8000u;
    if (isnan(value)) {
        return (uint16_t)(sign | 0x7e00u);
    }
    if (isinf(value)) {
        return (uint16_t)(sign | 0x7c00u);
    }
    (void)frexp((double)value, &exponent);
    exponent -= 1;
    if (value == 0.0f || exponent < -14) {
        return (uint16_t)(sign | (uint32_t)ldexp(fabs((double)value), 24));
    }
    unit = ldexp(fabs((double)value), 10 - exponent); /* 1024 .. 2047 */
    return (uint16_t)(sign | (uint32_t)(exponent + 15) << 10 |
                      ((uint32_t)unit & 0x3ffu));
}

static float decode(sl_cuda_type_t type, uint16_t bits)
{
    const uint32_t word = (uint32_t)bits << 16;
    const double sign = bits & 0x8000u ? -1.0 : 1.0;
    const int exponent = bits >> 10 & 31;
    const int fraction = bits & 0x3ff;
    float value;

    if (type == SL_CUDA_BF16) {
        memcpy(&value, &word, sizeof(value));
        return value;
    }
    if (exponent == 31) {
        return fraction != 0 ? NAN : (float)(sign * (double)INFINITY);
    }
    return (float)(sign * (exponent == 0 ? ldexp((double)fraction, -24)
                                         : ldexp((double)(fraction + 1024),
                                                 exponent - 25)));
}

/* ---- device arrays ---- */

static void *array_make(const void *data, size_t bytes, size_t shift_bytes)
{
    const size_t before = GUARD_BYTES + shift_bytes;
    array_t *array = &arrays[n_arrays];
    unsigned char *image;

    assert_true(n_arrays < MAX_ITEMS);
    array->bytes = bytes;
    array->whole_bytes = before + bytes + GUARD_BYTES;
    image = malloc(array->whole_bytes);
    assert_non_null(image);
    memset(image, GUARD_BYTE, array->whole_bytes);
    if (data == NULL) {
        memset(image + before, POISON_BYTE, bytes);
    } else {
        memcpy(image + before, data, bytes);
    }
    ok(cudaMalloc((void **)&array->base, array->whole_bytes));
    n_arrays++;
    array->ptr = array->base + before;
    ok(cudaMemcpyAsync(array->base, image, array->whole_bytes,
                       cudaMemcpyHostToDevice, stream));
    ok(cudaStreamSynchronize(stream));
    free(image);
    return array->ptr;
}

void *bed_array(sl_cuda_type_t type, size_t n, size_t shift)
{
    const size_t size = sl_cuda_type_bytes(type);

    return array_make(NULL, n * size, shift * size);
}

void *bed_upload(sl_cuda_type_t type, float *values, size_t n, size_t shift)
{
    const size_t size = sl_cuda_type_bytes(type);
    uint16_t *words = host_alloc(n * sizeof(*words));
    size_t i;

    if (type == SL_CUDA_F32) {
        return array_make(values, n * size, shift * size);
    }
    for (i = 0; i < n; i++) {
        values[i] = (float)bed_round(type, (double)values[i]);
        words[i] = encode(type, values[i]);
    }
    return array_make(words, n * size, shift * size);
}

void *bed_upload_bytes(const void *data, size_t bytes)
{
    return array_make(data, bytes, 0);
}

void *bed_bytes(size_t bytes)
{
    return array_make(NULL, bytes, 0);
}

void bed_fetch_bytes(void *to, const void *array, size_t bytes)
{
    if (bytes > 0) {
        ok(cudaMemcpyAsync(to, array, bytes, cudaMemcpyDeviceToHost, stream));
    }
    ok(cudaStreamSynchronize(stream));
}

float *bed_fetch(sl_cuda_type_t type, const void *array, size_t n)
{
    float *values = bed_floats(n);
    uint16_t *words;
    size_t i;

    if (type == SL_CUDA_F32) {
        bed_fetch_bytes(values, array, n * sizeof(*values));
        return values;
    }
    words = host_alloc(n * sizeof(*words));
    bed_fetch_bytes(words, array, n * sizeof(*words));
    for (i = 0; i < n; i++) {
        values[i] = decode(type, words[i]);
    }
    return values;
}

static int guards_are_whole(const array_t *array)
{
    unsigned char *image = malloc(array->whole_bytes);
    const size_t before = (size_t)(array->ptr - array->base);
    int is_whole = 1;
    size_t i;

    assert_non_null(image);
    ok(cudaMemcpyAsync(image, array->base, array->whole_bytes,
                       cudaMemcpyDeviceToHost, stream));
    ok(cudaStreamSynchronize(stream));
    for (i = 0; i < array->whole_bytes; i++) {
        if ((i < before || i >= before + array->bytes) &&
            image[i] != GUARD_BYTE) {
            is_whole = 0;
        }
    }
    free(image);
    return is_whole;
}

/* ---- a test ---- */

int bed_setup(void **state)
{
    (void)sl_test_setup(state);
    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return 0;
}

int bed_teardown(void **state)
{
    int failed = 0;
    int i;

    for (i = 0; i < n_arrays; i++) {
        if (!guards_are_whole(&arrays[i])) {
            (void)fprintf(stderr, "array %d: written past an end\n", i);
            failed = 1;
        }
        ok(cudaFree(arrays[i].base));
    }
    n_arrays = 0;
    for (i = 0; i < n_layers; i++) {
        sl_layer_plan_cleanup(&layers[i].plan);
        sl_layer_destroy(layers[i].layer);
    }
    n_layers = 0;
    for (i = 0; i < n_host; i++) {
        free(host[i]);
    }
    n_host = 0;
    ok(cudaStreamDestroy(stream));
#ifdef SL_CUDA_STANDIN
    if (standin_n_live() != 0 || standin_n_reports() != 0) {
        (void)fprintf(stderr, "%d things live; %s\n", standin_n_live(),
                      standin_report(0));
        failed = 1;
    }
    standin_reset();
#endif
    return sl_test_teardown(state) || failed;
}

/* ---- comparisons ---- */

void bed_assert_close(const char *what, const float *got, const double *want,
                      size_t n, double relative, double absolute)
{
    size_t i;

    for (i = 0; i < n; i++) {
        const double error = fabs((double)got[i] - want[i]);

        if (!(error <= absolute + relative * fabs(want[i])) &&
            !(isnan(want[i]) && isnan(got[i])) &&
            !(isinf(want[i]) && (double)got[i] == want[i])) {
            fail_msg("%s: element %zu of %zu is %.9g, not %.9g", what, i, n,
                     (double)got[i], want[i]);
        }
    }
}

void bed_assert_same(const char *what, const float *got, const float *want,
                     size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        if (memcmp(&got[i], &want[i], sizeof(*got)) != 0 &&
            !(isnan(got[i]) && isnan(want[i]))) {
            fail_msg("%s: element %zu of %zu is %.9g, not %.9g", what, i, n,
                     (double)got[i], (double)want[i]);
        }
    }
}

static void keep_bits(unsigned char *to, const bed_output_t *outputs,
                      size_t n_outputs)
{
    size_t i;

    for (i = 0; i < n_outputs; i++) {
        bed_fetch_bytes(to, outputs[i].array, outputs[i].bytes);
        to += outputs[i].bytes;
    }
}

void bed_assert_repeats(void (*run)(void *args), void *args,
                        const bed_output_t *outputs, size_t n_outputs)
{
    unsigned char *first, *second;
    size_t bytes = 0;
    size_t i;

    for (i = 0; i < n_outputs; i++) {
        bytes += outputs[i].bytes;
    }
    first = host_alloc(bytes);
    second = host_alloc(bytes);
    run(args);
    keep_bits(first, outputs, n_outputs);
#ifdef SL_CUDA_STANDIN
    standin_set_reverse(1);
#endif
    run(args);
    keep_bits(second, outputs, n_outputs);
#ifdef SL_CUDA_STANDIN
    standin_set_reverse(0);
#endif
    assert_memory_equal(first, second, bytes);
}

/* ---- CPU layers ---- */

bed_layer_t *bed_cpu_layer(const char *type, const sl_attr_t *attrs,
                           size_t n_attrs, const sl_tensor_desc_t *in,
                           int n_inputs)
{
    bed_layer_t *cpu = &layers[n_layers];
    const sl_layer_spec_t spec = {.type = type,
                                  .n_inputs = n_inputs,
                                  .inputs = {-1, -2, 0, 0},
                                  .attrs = attrs,
                                  .n_attrs = n_attrs};
    sl_tensor_desc_t out;
    size_t workspace;

    assert_true(n_layers < MAX_LAYERS);
    memset(cpu, 0, sizeof(*cpu));
    sl_assert_ok(sl_layer_create(&spec, 3, in, &cpu->layer, &out));
    sl_assert_ok(sl_layer_plan_init(&cpu->plan, cpu->layer, SL_DEVICE_KIND_CPU,
                                    1, 1, in));
    n_layers++;
    workspace = cpu->plan.forward_workspace_bytes;
    if (workspace < cpu->plan.backward_workspace_bytes) {
        workspace = cpu->plan.backward_workspace_bytes;
    }
    cpu->run.plan = &cpu->plan;
    cpu->run.saved = host_alloc(cpu->plan.saved_bytes);
    cpu->run.workspace = host_alloc(workspace);
    cpu->run.step.is_training = 1;
    cpu->run.step.seed = 99;
    cpu->run.step.step = 5;
    cpu->run.step.micro_batch = 2;
    cpu->run.step.loss_scale = 1;
    return cpu;
}

void bed_cpu_forward(bed_layer_t *cpu)
{
    sl_assert_ok(
        cpu->layer->ops->kernels[SL_DEVICE_KIND_CPU]->forward(&cpu->run, NULL));
}

void bed_cpu_backward(bed_layer_t *cpu)
{
    sl_assert_ok(cpu->layer->ops->kernels[SL_DEVICE_KIND_CPU]->backward(
        &cpu->run, NULL));
}
