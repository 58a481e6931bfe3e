/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors: the bytes written, reading back, conversions, bad files. */
#include "tests/support/sl_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/rng.h"
#include "engine/safetensors.h"

static const char *path_of(const char *name)
{
    static char path[512];

    (void)snprintf(path, sizeof(path), "%s/%s", sl_test_directory(), name);
    return path;
}

static const float weight[6] = {1.0f, -2.5f, 0.0f, 3e-39f, INFINITY, 7.0f};
static const float bias[2] = {0.25f, -0.0f};
static const float scale[1] = {42.0f};

/* conv.weight [2, 3], conv.bias [2], scale [], empty [0, 4] */
static void write_sample(const char *path)
{
    const sl_safetensors_entry_t entries[] = {
        {.name = "conv.weight", .n_dims = 2, .dims = {2, 3}},
        {.name = "conv.bias", .n_dims = 1, .dims = {2}},
        {.name = "scale", .n_dims = 0},
        {.name = "empty", .n_dims = 2, .dims = {0, 4}}};
    sl_safetensors_writer_t *writer = NULL;

    sl_assert_ok(sl_safetensors_begin(path, entries, 4, &writer));
    sl_assert_ok(sl_safetensors_append(writer, weight));
    sl_assert_ok(sl_safetensors_append(writer, bias));
    sl_assert_ok(sl_safetensors_append(writer, scale));
    assert_int_equal(access(path, F_OK), -1);
    sl_assert_ok(sl_safetensors_append(writer, NULL));
    sl_assert_ok(sl_safetensors_end(writer));
}

/* The bytes of the format, written down by hand. */
static void test_bytes(void **state)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"conv.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],"
        "\"data_offsets\":[0,24]},"
        "\"conv.bias\":{\"dtype\":\"F32\",\"shape\":[2],"
        "\"data_offsets\":[24,32]},"
        "\"scale\":{\"dtype\":\"F32\",\"shape\":[],"
        "\"data_offsets\":[32,36]},"
        "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,4],"
        "\"data_offsets\":[36,36]}}";
    const size_t n_header = sizeof(header) - 1;
    const size_t n_padded = (n_header + 7) / 8 * 8;
    const char *path = path_of("bytes.safetensors");
    char *data = NULL;
    size_t n_bytes = 0, i;
    uint64_t length = 0;

    (void)state;
    write_sample(path);
    sl_assert_ok(sl_file_read(path, 1 << 20, &data, &n_bytes));
    assert_int_equal(n_bytes, 8 + n_padded + 36);
    for (i = 0; i < 8; i++) {
        length |= (uint64_t)(unsigned char)data[i] << (8 * i);
    }
    assert_int_equal(length, n_padded);
    assert_memory_equal(data + 8, header, n_header);
    for (i = n_header; i < n_padded; i++) {
        assert_int_equal(data[8 + i], ' ');
    }
    assert_memory_equal(data + 8 + n_padded, weight, sizeof(weight));
    assert_memory_equal(data + 8 + n_padded + 24, bias, sizeof(bias));
    assert_memory_equal(data + 8 + n_padded + 32, scale, sizeof(scale));
    free(data);
}

static void test_round_trip(void **state)
{
    const char *path = path_of("trip.safetensors");
    sl_safetensors_t *file = NULL;
    const sl_safetensors_entry_t *entry;
    float values[6] = {0};

    (void)state;
    write_sample(path);
    sl_assert_ok(sl_safetensors_open(path, &file));
    assert_int_equal(sl_safetensors_count(file), 4);
    assert_string_equal(sl_safetensors_at(file, 0)->name, "conv.bias");
    assert_string_equal(sl_safetensors_at(file, 3)->name, "scale");
    entry = sl_safetensors_find(file, "conv.weight");
    assert_non_null(entry);
    assert_int_equal(entry->n_dims, 2);
    assert_int_equal(entry->dims[0], 2);
    assert_int_equal(entry->dims[1], 3);
    assert_string_equal(entry->dtype, "F32");
    sl_assert_ok(sl_safetensors_read(file, entry, values));
    assert_memory_equal(values, weight, sizeof(weight));
    entry = sl_safetensors_find(file, "scale");
    assert_int_equal(sl_safetensors_elements(entry), 1);
    sl_assert_ok(sl_safetensors_read(file, entry, values));
    assert_true(values[0] == 42.0f);
    entry = sl_safetensors_find(file, "empty");
    assert_int_equal(sl_safetensors_elements(entry), 0);
    sl_assert_ok(sl_safetensors_read(file, entry, values));
    assert_null(sl_safetensors_find(file, "conv"));
    assert_null(sl_safetensors_find(file, "__metadata__"));
    sl_safetensors_close(file);
    sl_safetensors_close(NULL);
}

/* ---- files made by hand ---- */

static void write_raw(const char *path, uint64_t length, const char *header,
                      const void *data, size_t n_bytes)
{
    FILE *stream = fopen(path, "wb");
    unsigned char bytes[8];
    int i;

    assert_non_null(stream);
    for (i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(length >> (8 * i));
    }
    assert_int_equal(fwrite(bytes, 1, 8, stream), 8);
    (void)fwrite(header, 1, strlen(header), stream);
    (void)fwrite(data, 1, n_bytes, stream);
    assert_int_equal(fclose(stream), 0);
}

static void test_narrow_types(void **state)
{
    static const char header[] =
        "{\"h\":{\"dtype\":\"F16\",\"shape\":[8],\"data_offsets\":[0,16]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[16,24]},"
        "\"count\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[24,32]}"
        "}      ";
    static const uint16_t data[16] = {0x3C00, 0xC000, 0x0001, 0x83FF,
                                      0x7BFF, 0x7C00, 0x0400, 0x8000,
                                      0x3F80, 0xC020, 0x0001, 0xFF80};
    const char *path = path_of("narrow.safetensors");
    sl_safetensors_t *file = NULL;
    float v[8];

    (void)state;
    write_raw(path, strlen(header), header, data, sizeof(data));
    sl_assert_ok(sl_safetensors_open(path, &file));
    sl_assert_ok(sl_safetensors_read(file, sl_safetensors_find(file, "h"), v));
    assert_true(v[0] == 1.0f && v[1] == -2.0f && v[2] == 0x1p-24f);
    assert_true(v[3] == -1023.0f * 0x1p-24f && v[4] == 65504.0f);
    assert_true(isinf(v[5]) && v[5] > 0.0f && v[6] == 0x1p-14f);
    assert_true(v[7] == 0.0f && signbit(v[7]));
    sl_assert_ok(sl_safetensors_read(file, sl_safetensors_find(file, "b"), v));
    assert_true(v[0] == 1.0f && v[1] == -2.5f && isinf(v[3]));
    assert_true(v[2] == 0x1p-133f);
    /* other types may be there, but not be read */
    sl_assert_status(
        sl_safetensors_read(file, sl_safetensors_find(file, "count"), v),
        SL_ERR_UNSUPPORTED);
    sl_assert_contains(sl_last_error(), "count is I64");
    sl_safetensors_close(file);
}

/* More than one chunk of the conversion. */
static void test_long_narrow_tensor(void **state)
{
    enum {
        N = 10001
    };
    static const char header[] = "{\"x\":{\"dtype\":\"BF16\",\"shape\":[10001],"
                                 "\"data_offsets\":[0,20002]}}";
    const char *path = path_of("long.safetensors");
    static uint16_t data[N];
    static float v[N];
    sl_safetensors_t *file = NULL;
    size_t i;

    (void)state;
    for (i = 0; i < N; i++) {
        data[i] = (uint16_t)(i & 0x7EFF);
    }
    write_raw(path, strlen(header), header, data, sizeof(data));
    sl_assert_ok(sl_safetensors_open(path, &file));
    sl_assert_ok(sl_safetensors_read(file, sl_safetensors_at(file, 0), v));
    for (i = 0; i < N; i++) {
        const uint32_t bits = (uint32_t)data[i] << 16;

        assert_memory_equal(&v[i], &bits, sizeof(bits));
    }
    sl_safetensors_close(file);
}

typedef struct bad {
    const char *header;
    size_t data_bytes;
    sl_status_t status;
    const char *message;
} bad_t;

#define T(name, dtype, shape, offsets)                                         \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape                   \
    ",\"data_offsets\":" offsets "}"

static const bad_t bads[] = {
    {"", 0, SL_ERR_CORRUPT, "does not start with '{'"},
    {" {}", 0, SL_ERR_CORRUPT, "does not start with '{'"},
    {"[]", 0, SL_ERR_CORRUPT, "does not start with '{'"},
    {"{", 0, SL_ERR_CORRUPT, "header, byte 1"},
    {"{}x", 0, SL_ERR_CORRUPT, "header, byte"},
    {"{}", 4, SL_ERR_CORRUPT, "the tensors end at byte 0 of the data"},
    {"{\"a\":1}", 0, SL_ERR_CORRUPT, "tensor a is not described by an object"},
    {"{\"__metadata__\":[]}", 0, SL_ERR_CORRUPT, "is not an object"},
    {"{\"__metadata__\":{\"k\":1}}", 0, SL_ERR_CORRUPT, "k is not a text"},
    {"{" T("a", "F33", "[1]", "[0,4]") "}", 4, SL_ERR_UNSUPPORTED, "F33"},
    {"{\"a\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4, SL_ERR_CORRUPT,
     "dtype is not a text"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, SL_ERR_CORRUPT,
     "shape is not a list"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, SL_ERR_CORRUPT,
     "data_offsets is not [begin, end]"},
    {"{" T("a", "F32", "[-1]", "[0,4]") "}", 4, SL_ERR_CORRUPT, "dim 0 is not"},
    {"{" T("a", "F32", "[1.0]", "[0,4]") "}", 4, SL_ERR_CORRUPT,
     "dim 0 is not"},
    {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4,
     SL_ERR_UNSUPPORTED, "has 9 dims"},
    {"{" T("a", "F32", "[1]", "[4,0]") "}", 4, SL_ERR_CORRUPT, "[begin, end]"},
    {"{" T("a", "F32", "[1]", "[-4,0]") "}", 4, SL_ERR_CORRUPT, "[begin, end]"},
    {"{" T("a", "F32", "[1]", "[0,4,8]") "}", 4, SL_ERR_CORRUPT,
     "[begin, end]"},
    {"{" T("a", "F32", "[2]", "[0,8]") "}", 4, SL_ERR_CORRUPT,
     "may be cut off"},
    {"{" T("a", "F32", "[2]", "[0,4]") "}", 4, SL_ERR_CORRUPT,
     "not as many as its shape"},
    /* 2^62 * 2^62 * 4 and 2^62 * 4 both wrap to 0 */
    {"{" T("a", "F32", "[4611686018427387904,4611686018427387904]",
           "[0,0]") "}",
     0, SL_ERR_CORRUPT, "not as many as its shape"},
    {"{" T("a", "F32", "[4611686018427387904]", "[0,0]") "}", 0, SL_ERR_CORRUPT,
     "not as many as its shape"},
    {"{" T("a", "F32", "[99999999999999999999]", "[0,0]") "}", 0,
     SL_ERR_CORRUPT, "header, byte"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[0,4]") "}", 4,
     SL_ERR_CORRUPT, "starts at byte 0 of the data; the one before it"},
    {"{" T("a", "F32", "[1]", "[4,8]") "}", 8, SL_ERR_CORRUPT,
     "starts at byte 4"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", 8,
     SL_ERR_CORRUPT, "header, byte"},
};

static void test_bad_headers(void **state)
{
    static const char zeros[16] = {0};
    const char *path = path_of("bad.safetensors");
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(bads) / sizeof(*bads); i++) {
        sl_safetensors_t *file = NULL;

        write_raw(path, strlen(bads[i].header), bads[i].header, zeros,
                  bads[i].data_bytes);
        sl_assert_status(sl_safetensors_open(path, &file), bads[i].status);
        sl_assert_contains(sl_last_error(), bads[i].message);
        sl_assert_contains(sl_last_error(), "bad.safetensors");
        assert_null(file);
    }
}

static void test_bad_files(void **state)
{
    static const uint64_t lengths[] = {3, 1000, 100000001, UINT64_MAX,
                                       UINT64_MAX - 7};
    const char *path = path_of("bad");
    sl_safetensors_t *file = NULL;
    size_t i;

    (void)state;
    sl_assert_status(sl_safetensors_open(path, &file), SL_ERR_IO);
    sl_assert_status(sl_safetensors_open(sl_test_directory(), &file),
                     SL_ERR_IO);
    for (i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        write_raw(path, lengths[i], "{}", "", 0);
        sl_assert_status(sl_safetensors_open(path, &file), SL_ERR_CORRUPT);
        sl_assert_contains(sl_last_error(), "the header says it has");
    }
    assert_int_equal(truncate(path, 7), 0);
    sl_assert_status(sl_safetensors_open(path, &file), SL_ERR_CORRUPT);
    assert_int_equal(truncate(path, 0), 0);
    sl_assert_status(sl_safetensors_open(path, &file), SL_ERR_CORRUPT);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    sl_assert_status(sl_safetensors_open(path, &file), SL_ERR_IO);
    assert_null(file);
}

/* Open, and read all there is. @return whether it opened */
static int try_file(const char *path)
{
    sl_safetensors_t *file = NULL;
    size_t i;

    if (sl_safetensors_open(path, &file) != SL_OK) {
        assert_null(file);
        (void)sl_test_log_take();
        return 0;
    }
    for (i = 0; i < sl_safetensors_count(file); i++) {
        const sl_safetensors_entry_t *entry = sl_safetensors_at(file, i);
        float values[64];
        sl_status_t status;

        assert_ptr_equal(sl_safetensors_find(file, entry->name), entry);
        assert_true(sl_safetensors_elements(entry) <= 36);
        status = sl_safetensors_read(file, entry, values);
        assert_true(status == SL_OK || status == SL_ERR_UNSUPPORTED);
    }
    sl_safetensors_close(file);
    (void)sl_test_log_take();
    return 1;
}

/* Every byte is changed, and the file is cut everywhere: it opens and can be
 * read, or is refused; it never crashes. */
static void test_fuzz(void **state)
{
    enum {
        N_ROUNDS = 6
    };
    const char *path = path_of("fuzz.safetensors");
    const sl_rng_t rng = sl_rng_at(1, 0, 0, 0, 0);
    char *data = NULL;
    size_t n_bytes = 0, round, at, n_open = 0, n_refused = 0;
    FILE *stream;
    int fd;

    (void)state;
    write_sample(path);
    sl_assert_ok(sl_file_read(path, 1 << 20, &data, &n_bytes));
    stream = fopen(path, "r+b");
    assert_non_null(stream);
    fd = fileno(stream);
    for (round = 0; round < N_ROUNDS; round++) {
        for (at = 0; at < n_bytes; at++) {
            const char byte =
                round == 0 ? (char)(data[at] ^ 1)
                           : (char)sl_rng_u32(&rng, round * n_bytes + at);

            assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
            n_open += try_file(path) != 0;
            assert_int_equal(pwrite(fd, &data[at], 1, (off_t)at), 1);
        }
    }
    assert_true(try_file(path));
    for (at = n_bytes; at > 0; at--) {
        assert_int_equal(ftruncate(fd, (off_t)at - 1), 0);
        n_refused += try_file(path) == 0;
    }
    assert_int_equal(n_refused, n_bytes);
    (void)fclose(stream);
    /* names, dtypes of equal width, and data may change unnoticed */
    assert_true(n_open > 0 && n_open < N_ROUNDS * n_bytes);
    free(data);
}

/* One more text of metadata; size and hash are those of the file. */
static void test_metadata_and_hash(void **state)
{
    const sl_safetensors_entry_t entry = {
        .name = "a", .n_dims = 1, .dims = {2}};
    const char *path = path_of("m.safetensors");
    sl_safetensors_writer_t *writer = NULL;
    sl_safetensors_t *file = NULL;
    uint64_t n_bytes = 0, hash = 0;
    char *data = NULL;
    size_t n = 0;

    (void)state;
    sl_assert_ok(sl_safetensors_begin_with(path, &entry, 1, "note",
                                           "a \"text\"\n", &writer));
    sl_assert_ok(sl_safetensors_append(writer, bias));
    sl_assert_ok(sl_safetensors_finish(writer, &n_bytes, &hash));
    sl_assert_ok(sl_file_read(path, 1000, &data, &n));
    assert_int_equal(n_bytes, n);
    assert_true(hash == sl_hash(data, n, 0));
    free(data);
    sl_assert_ok(sl_safetensors_open(path, &file));
    assert_string_equal(sl_safetensors_metadata(file, "note"), "a \"text\"\n");
    assert_string_equal(sl_safetensors_metadata(file, "format"), "pt");
    assert_null(sl_safetensors_metadata(file, "nothing"));
    sl_safetensors_close(file);
    sl_assert_status(
        sl_safetensors_begin_with(path, &entry, 1, "note", "\xff", &writer),
        SL_ERR_INVALID_ARG);
}

static void test_bad_writes(void **state)
{
    const char *path = path_of("w.safetensors");
    const sl_safetensors_entry_t good[] = {
        {.name = "a", .n_dims = 1, .dims = {2}},
        {.name = "b", .n_dims = 1, .dims = {2}}};
    sl_safetensors_entry_t entries[2];
    sl_safetensors_writer_t *writer = NULL;
    static const char *const names[] = {"", "b", "__metadata__", "\xff", NULL};
    const float values[2] = {0.0f, 0.0f};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(names) / sizeof(*names); i++) {
        memcpy(entries, good, sizeof(good));
        entries[0].name = names[i];
        sl_assert_status(sl_safetensors_begin(path, entries, 2, &writer),
                         SL_ERR_INVALID_ARG);
    }
    memcpy(entries, good, sizeof(good));
    entries[0].n_dims = 9;
    sl_assert_status(sl_safetensors_begin(path, entries, 2, &writer),
                     SL_ERR_INVALID_ARG);
    entries[0].n_dims = 1;
    entries[0].dims[0] = -1;
    sl_assert_status(sl_safetensors_begin(path, entries, 2, &writer),
                     SL_ERR_INVALID_ARG);
    entries[0].dims[0] = INT64_MAX / 4;
    entries[1].dims[0] = INT64_MAX / 8;
    sl_assert_status(sl_safetensors_begin(path, entries, 2, &writer),
                     SL_ERR_INVALID_ARG);
    sl_assert_status(sl_safetensors_begin(path_of("no/such"), good, 2, &writer),
                     SL_ERR_IO);
    assert_null(writer);

    path = path_of("w.safetensors");
    sl_assert_ok(sl_safetensors_begin(path, good, 2, &writer));
    sl_assert_ok(sl_safetensors_append(writer, values));
    sl_assert_status(sl_safetensors_end(writer), SL_ERR_INVALID_ARG);
    sl_assert_ok(sl_safetensors_begin(path, good, 1, &writer));
    sl_assert_ok(sl_safetensors_append(writer, values));
    sl_assert_status(sl_safetensors_append(writer, values), SL_ERR_INVALID_ARG);
    sl_safetensors_abort(writer);
    sl_safetensors_abort(NULL);
    assert_int_equal(access(path, F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(test_bytes),
        sl_unit_test(test_round_trip),
        sl_unit_test(test_narrow_types),
        sl_unit_test(test_long_narrow_tensor),
        sl_unit_test(test_bad_headers),
        sl_unit_test(test_bad_files),
        sl_unit_test(test_metadata_and_hash),
        sl_unit_test(test_fuzz),
        sl_unit_test(test_bad_writes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
