/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors: header checks, reading with conversion, streamed writing. */
#include "engine/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "base/file.h"
#include "base/hash.h"

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors data is little-endian, and is read without swapping"
#endif

enum {
    LENGTH_BYTES = 8,
    MAX_HEADER_BYTES = 100000000, /* as the format's own reader */
    ALIGN_BYTES = 8,
    CHUNK = 4096 /* elements converted at a time */
};

static const char metadata_key[] = "__metadata__";

static const struct dtype {
    const char *name;
    uint64_t bytes;
} dtypes[] = {{"F32", 4},  {"F16", 2},     {"BF16", 2},   {"F64", 8},
              {"BOOL", 1}, {"U8", 1},      {"I8", 1},     {"U16", 2},
              {"I16", 2},  {"U32", 4},     {"I32", 4},    {"U64", 8},
              {"I64", 8},  {"F8_E5M2", 1}, {"F8_E4M3", 1}};

typedef struct tensor {
    sl_safetensors_entry_t entry; /* first: an entry is its tensor */
    uint64_t begin, end;          /* in the data, bytes */
} tensor_t;

struct sl_safetensors {
    char *path;
    int fd;
    json_t *header; /* names live here */
    uint64_t data_start, data_bytes;
    size_t n;
    tensor_t *tensors; /* in the order of names */
};

int64_t sl_safetensors_elements(const sl_safetensors_entry_t *entry)
{
    int64_t n = 1;
    int i;

    for (i = 0; i < entry->n_dims; i++) {
        n *= entry->dims[i];
    }
    return n;
}

/* Product of the dims times unit into *bytes_p. @return 0 on overflow */
static int byte_count(const sl_safetensors_entry_t *entry, uint64_t unit,
                      uint64_t *bytes_p)
{
    uint64_t bytes = unit;
    int i;

    for (i = 0; i < entry->n_dims; i++) {
        const uint64_t dim = (uint64_t)entry->dims[i];

        if (dim != 0 && bytes > (uint64_t)INT64_MAX / dim) {
            return 0;
        }
        bytes *= dim;
    }
    *bytes_p = bytes;
    return 1;
}

/* ---- reading ---- */

static sl_status_t read_at(const sl_safetensors_t *file, uint64_t offset,
                           void *data, size_t n_bytes)
{
    sl_status_t status = SL_OK;
    char *to = data;

    while (n_bytes > 0) {
        const ssize_t got = pread(file->fd, to, n_bytes, (off_t)offset);

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            SL_FAIL(status, SL_ERR_IO, out, "%s: reading %zu bytes at %llu: %s",
                    file->path, n_bytes, (unsigned long long)offset,
                    got < 0 ? strerror(errno) : "the file ends there");
        }
        to += got;
        offset += (uint64_t)got;
        n_bytes -= (size_t)got;
    }
out:
    return status;
}

static sl_status_t check_shape(const sl_safetensors_t *file, const char *name,
                               const json_t *shape,
                               sl_safetensors_entry_t *entry)
{
    const size_t n = json_array_size(shape);
    sl_status_t status = SL_OK;
    size_t i;

    if (!json_is_array(shape)) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "%s: tensor %.200s: shape is not a list", file->path, name);
    }
    if (n > SL_SAFETENSORS_MAX_DIMS) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "%s: tensor %.200s has %zu dims; at most %d are supported",
                file->path, name, n, SL_SAFETENSORS_MAX_DIMS);
    }
    for (i = 0; i < n; i++) {
        const json_t *dim = json_array_get(shape, i);

        if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
            SL_FAIL(status, SL_ERR_CORRUPT, out,
                    "%s: tensor %.200s: dim %zu is not a number from 0 up",
                    file->path, name, i);
        }
        entry->dims[i] = json_integer_value(dim);
    }
    entry->n_dims = (int)n;
out:
    return status;
}

static sl_status_t check_dtype(const sl_safetensors_t *file, const char *name,
                               const json_t *dtype,
                               sl_safetensors_entry_t *entry,
                               uint64_t *unit_bytes_p)
{
    const char *text = json_string_value(dtype);
    sl_status_t status = SL_OK;
    size_t i;

    if (text == NULL) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "%s: tensor %.200s: dtype is not a text", file->path, name);
    }
    for (i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++) {
        if (strcmp(text, dtypes[i].name) == 0) {
            entry->dtype = dtypes[i].name;
            *unit_bytes_p = dtypes[i].bytes;
            return SL_OK;
        }
    }
    SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
            "%s: tensor %.200s: dtype %.40s is not known", file->path, name,
            text);
out:
    return status;
}

static sl_status_t check_offsets(const sl_safetensors_t *file, const char *name,
                                 const json_t *offsets, uint64_t unit_bytes,
                                 tensor_t *tensor)
{
    const json_t *begin = json_array_get(offsets, 0);
    const json_t *end = json_array_get(offsets, 1);
    uint64_t bytes = 0;
    sl_status_t status = SL_OK;

    if (json_array_size(offsets) != 2 || !json_is_integer(begin) ||
        !json_is_integer(end) || json_integer_value(begin) < 0 ||
        json_integer_value(end) < json_integer_value(begin)) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "%s: tensor %.200s: data_offsets is not [begin, end]",
                file->path, name);
    }
    tensor->begin = (uint64_t)json_integer_value(begin);
    tensor->end = (uint64_t)json_integer_value(end);
    if (tensor->end > file->data_bytes) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "%s: tensor %.200s ends at byte %llu of the data, which has "
                "%llu; the file may be cut off",
                file->path, name, (unsigned long long)tensor->end,
                (unsigned long long)file->data_bytes);
    }
    if (!byte_count(&tensor->entry, unit_bytes, &bytes) ||
        bytes != tensor->end - tensor->begin) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "%s: tensor %.200s has %llu bytes of data, not as many as its "
                "shape asks for",
                file->path, name,
                (unsigned long long)(tensor->end - tensor->begin));
    }
out:
    return status;
}

static sl_status_t check_tensor(const sl_safetensors_t *file, const char *name,
                                const json_t *value, tensor_t *tensor)
{
    uint64_t unit_bytes = 0;
    sl_status_t status;

    if (!json_is_object(value)) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "%s: tensor %.200s is not described by an object", file->path,
                name);
    }
    tensor->entry.name = name;
    SL_TRY(status,
           check_dtype(file, name, json_object_get(value, "dtype"),
                       &tensor->entry, &unit_bytes),
           out);
    SL_TRY(status,
           check_shape(file, name, json_object_get(value, "shape"),
                       &tensor->entry),
           out);
    SL_TRY(status,
           check_offsets(file, name, json_object_get(value, "data_offsets"),
                         unit_bytes, tensor),
           out);
out:
    return status;
}

static sl_status_t check_metadata(const sl_safetensors_t *file,
                                  json_t *metadata)
{
    sl_status_t status = SL_OK;
    const char *key;
    json_t *value;

    if (!json_is_object(metadata)) {
        SL_FAIL(status, SL_ERR_CORRUPT, out, "%s: %s is not an object",
                file->path, metadata_key);
    }
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value)) {
            SL_FAIL(status, SL_ERR_CORRUPT, out, "%s: %s: %.200s is not a text",
                    file->path, metadata_key, key);
        }
    }
out:
    return status;
}

static int compare_begin(const void *a, const void *b)
{
    const tensor_t *x = a, *y = b;

    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->end > y->end) - (x->end < y->end);
}

static int compare_name(const void *a, const void *b)
{
    const tensor_t *x = a, *y = b;

    return strcmp(x->entry.name, y->entry.name);
}

/* The format allows neither overlaps nor holes. */
static sl_status_t check_layout(const sl_safetensors_t *file)
{
    sl_status_t status = SL_OK;
    uint64_t end = 0;
    size_t i;

    for (i = 0; i < file->n; i++) {
        if (file->tensors[i].begin != end) {
            SL_FAIL(status, SL_ERR_CORRUPT, out,
                    "%s: tensor %.200s starts at byte %llu of the data; the "
                    "one before it ends at %llu",
                    file->path, file->tensors[i].entry.name,
                    (unsigned long long)file->tensors[i].begin,
                    (unsigned long long)end);
        }
        end = file->tensors[i].end;
    }
    if (end != file->data_bytes) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "%s: the tensors end at byte %llu of the data, which has %llu",
                file->path, (unsigned long long)end,
                (unsigned long long)file->data_bytes);
    }
out:
    return status;
}

static sl_status_t check_header(sl_safetensors_t *file)
{
    sl_status_t status = SL_OK;
    const char *name;
    json_t *value;

    if (!json_is_object(file->header)) {
        SL_FAIL(status, SL_ERR_CORRUPT, out, "%s: the header is not an object",
                file->path);
    }
    file->tensors =
        calloc(json_object_size(file->header) + 1, sizeof(*file->tensors));
    if (file->tensors == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "%s: no host memory for %zu tensors", file->path,
                json_object_size(file->header));
    }
    json_object_foreach(file->header, name, value)
    {
        if (strcmp(name, metadata_key) == 0) {
            SL_TRY(status, check_metadata(file, value), out);
        } else {
            SL_TRY(status,
                   check_tensor(file, name, value, &file->tensors[file->n]),
                   out);
            file->n++;
        }
    }
    qsort(file->tensors, file->n, sizeof(*file->tensors), compare_begin);
    SL_TRY(status, check_layout(file), out);
    qsort(file->tensors, file->n, sizeof(*file->tensors), compare_name);
out:
    return status;
}

static sl_status_t parse_header(sl_safetensors_t *file, const char *text,
                                size_t n_bytes)
{
    sl_status_t status = SL_OK;
    json_error_t error;

    /* the format wants its first byte to be '{' */
    file->header =
        n_bytes > 0 && text[0] == '{'
            ? json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error)
            : NULL;
    if (file->header == NULL && (n_bytes == 0 || text[0] != '{')) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "%s: the header does not start with '{'; this is no "
                "safetensors file",
                file->path);
    }
    if (file->header == NULL) {
        SL_FAIL(status, SL_ERR_CORRUPT, out, "%s: header, byte %d: %s",
                file->path, error.position, error.text);
    }
out:
    return status;
}

static sl_status_t read_header(sl_safetensors_t *file, uint64_t file_bytes)
{
    char *text = NULL;
    uint64_t n_bytes = 0;
    sl_status_t status;

    if (file_bytes < LENGTH_BYTES) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "%s: %llu bytes are too few for a safetensors file", file->path,
                (unsigned long long)file_bytes);
    }
    SL_TRY(status, read_at(file, 0, &n_bytes, LENGTH_BYTES), out);
    if (n_bytes > MAX_HEADER_BYTES || n_bytes > file_bytes - LENGTH_BYTES) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "%s: the header says it has %llu bytes; the file has %llu in "
                "all, and at most %d are allowed",
                file->path, (unsigned long long)n_bytes,
                (unsigned long long)file_bytes, MAX_HEADER_BYTES);
    }
    file->data_start = LENGTH_BYTES + n_bytes;
    file->data_bytes = file_bytes - file->data_start;
    text = malloc((size_t)n_bytes + 1);
    if (text == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "%s: no host memory for a header of %llu bytes", file->path,
                (unsigned long long)n_bytes);
    }
    SL_TRY(status, read_at(file, LENGTH_BYTES, text, (size_t)n_bytes),
           out_free);
    SL_TRY(status, parse_header(file, text, (size_t)n_bytes), out_free);
    SL_TRY(status, check_header(file), out_free);
out_free:
    free(text);
out:
    return status;
}

sl_status_t sl_safetensors_open(const char *path, sl_safetensors_t **file_p)
{
    /* not to wait when the path is a pipe */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    sl_status_t status;

    if (fd < 0) {
        SL_FAIL(status, SL_ERR_IO, out, "%s: %s", path, strerror(errno));
    }
    status = sl_safetensors_open_fd(fd, path, file_p);
out:
    return status;
}

sl_status_t sl_safetensors_open_fd(int take_fd, const char *path,
                                   sl_safetensors_t **file_p)
{
    sl_safetensors_t *file = calloc(1, sizeof(*file));
    struct stat info;
    sl_status_t status;

    if (file == NULL || (file->path = strdup(path)) == NULL) {
        free(file);
        (void)close(take_fd);
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no host memory", path);
    }
    file->fd = take_fd;
    if (fstat(file->fd, &info) != 0) {
        SL_FAIL(status, SL_ERR_IO, err_close, "%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        SL_FAIL(status, SL_ERR_IO, err_close, "%s: not a regular file", path);
    }
    SL_TRY(status, read_header(file, (uint64_t)info.st_size), err_close);
    *file_p = file;
    return SL_OK;

err_close:
    sl_safetensors_close(file);
out:
    return status;
}

void sl_safetensors_close(sl_safetensors_t *file)
{
    if (file == NULL) {
        return;
    }
    if (file->fd >= 0) {
        (void)close(file->fd);
    }
    json_decref(file->header);
    free(file->tensors);
    free(file->path);
    free(file);
}

size_t sl_safetensors_count(const sl_safetensors_t *file)
{
    return file->n;
}

const sl_safetensors_entry_t *sl_safetensors_at(const sl_safetensors_t *file,
                                                size_t i)
{
    return &file->tensors[i].entry;
}

const sl_safetensors_entry_t *sl_safetensors_find(const sl_safetensors_t *file,
                                                  const char *name)
{
    const tensor_t key = {.entry = {.name = name}};
    const tensor_t *found = bsearch(&key, file->tensors, file->n,
                                    sizeof(*file->tensors), compare_name);

    return found == NULL ? NULL : &found->entry;
}

const char *sl_safetensors_metadata(const sl_safetensors_t *file,
                                    const char *key)
{
    return json_string_value(
        json_object_get(json_object_get(file->header, metadata_key), key));
}

static float float_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* IEEE half precision; exact. */
static float float_of_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1Fu;
    const uint32_t fraction = half & 0x3FFu;

    if (exponent == 0) {
        const float value = (float)fraction * 0x1p-24f;

        return sign != 0 ? -value : value;
    }
    if (exponent == 0x1F) {
        return float_of_bits(sign | 0x7F800000u | fraction << 13);
    }
    return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static sl_status_t read_narrow(sl_safetensors_t *file, const tensor_t *tensor,
                               int is_half, float *values)
{
    uint16_t chunk[CHUNK];
    const uint64_t n = (tensor->end - tensor->begin) / sizeof(*chunk);
    const uint64_t start = file->data_start + tensor->begin;
    sl_status_t status = SL_OK;
    uint64_t done;

    for (done = 0; done < n; done += CHUNK) {
        const size_t n_now = n - done < CHUNK ? (size_t)(n - done) : CHUNK;
        size_t i;

        SL_TRY(status,
               read_at(file, start + done * sizeof(*chunk), chunk,
                       n_now * sizeof(*chunk)),
               out);
        for (i = 0; i < n_now; i++) {
            values[done + i] = is_half
                                   ? float_of_half(chunk[i])
                                   : float_of_bits((uint32_t)chunk[i] << 16);
        }
    }
out:
    return status;
}

sl_status_t sl_safetensors_read(sl_safetensors_t *file,
                                const sl_safetensors_entry_t *entry,
                                float *values)
{
    const tensor_t *tensor = (const tensor_t *)entry;
    sl_status_t status;

    if (strcmp(entry->dtype, "F32") == 0) {
        return read_at(file, file->data_start + tensor->begin, values,
                       (size_t)(tensor->end - tensor->begin));
    }
    if (strcmp(entry->dtype, "F16") == 0) {
        return read_narrow(file, tensor, 1, values);
    }
    if (strcmp(entry->dtype, "BF16") == 0) {
        return read_narrow(file, tensor, 0, values);
    }
    SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
            "%s: tensor %.200s is %s; F32, F16 and BF16 can be read",
            file->path, entry->name, entry->dtype);
out:
    return status;
}

/* ---- writing ---- */

struct sl_safetensors_writer {
    sl_file_writer_t *file;
    char *path;
    size_t n, n_done;
    uint64_t *n_bytes; /* per tensor */
    uint64_t file_bytes;
    sl_hash_stream_t *hash; /* of the file so far */
};

/* An error stays in the stream, and is reported at the end at the latest. */
static size_t put(sl_safetensors_writer_t *writer, const void *data,
                  size_t n_bytes)
{
    writer->file_bytes += n_bytes;
    sl_hash_stream_add(writer->hash, data, n_bytes);
    return fwrite(data, 1, n_bytes, sl_file_stream(writer->file));
}

static sl_status_t describe(json_t *header, const sl_safetensors_entry_t *entry,
                            uint64_t *begin, uint64_t *n_bytes_p)
{
    json_t *shape = NULL;
    uint64_t n_bytes = 0;
    sl_status_t status = SL_OK;
    int i;

    if (entry->name == NULL || entry->name[0] == '\0' ||
        strcmp(entry->name, metadata_key) == 0 ||
        json_object_get(header, entry->name) != NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "safetensors: the name '%.200s' is empty, reserved or there "
                "twice",
                entry->name == NULL ? "" : entry->name);
    }
    if (entry->n_dims < 0 || entry->n_dims > SL_SAFETENSORS_MAX_DIMS) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "safetensors: tensor %.200s has %d dims; 0 to %d are possible",
                entry->name, entry->n_dims, SL_SAFETENSORS_MAX_DIMS);
    }
    shape = json_array();
    for (i = 0; i < entry->n_dims; i++) {
        if (entry->dims[i] < 0) {
            SL_FAIL(status, SL_ERR_INVALID_ARG, out_decref,
                    "safetensors: tensor %.200s: dim %d is %lld", entry->name,
                    i, (long long)entry->dims[i]);
        }
        (void)json_array_append_new(shape, json_integer(entry->dims[i]));
    }
    if (!byte_count(entry, sizeof(float), &n_bytes) ||
        n_bytes > (uint64_t)INT64_MAX - *begin) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out_decref,
                "safetensors: tensor %.200s is larger than a file can be",
                entry->name);
    }
    if (json_object_set_new(header, entry->name,
                            json_pack("{s:s, s:O, s:[I, I]}", "dtype", "F32",
                                      "shape", shape, "data_offsets",
                                      (json_int_t)*begin,
                                      (json_int_t)(*begin + n_bytes))) != 0) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out_decref,
                "safetensors: the name '%.200s' is not UTF-8, or there is no "
                "host memory",
                entry->name);
    }
    *begin += n_bytes;
    *n_bytes_p = n_bytes;
out_decref:
    json_decref(shape);
out:
    return status;
}

static sl_status_t write_header(sl_safetensors_writer_t *writer,
                                const json_t *header)
{
    char *text = json_dumps(header, JSON_COMPACT | JSON_PRESERVE_ORDER);
    const char blanks[] = "        ";
    sl_status_t status = SL_OK;
    uint64_t n_bytes, n_padded;

    if (text == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no host memory",
                writer->path);
    }
    n_bytes = strlen(text);
    n_padded = (n_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    if (n_padded > MAX_HEADER_BYTES) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out_free,
                "%s: a header of %llu bytes is more than the %d allowed",
                writer->path, (unsigned long long)n_padded, MAX_HEADER_BYTES);
    }
    (void)put(writer, &n_padded, LENGTH_BYTES);
    (void)put(writer, text, (size_t)n_bytes);
    (void)put(writer, blanks, (size_t)(n_padded - n_bytes));
out_free:
    free(text);
out:
    return status;
}

sl_status_t sl_safetensors_begin(const char *path,
                                 const sl_safetensors_entry_t *entries,
                                 size_t n, sl_safetensors_writer_t **writer_p)
{
    return sl_safetensors_begin_with(path, entries, n, NULL, NULL, writer_p);
}

sl_status_t sl_safetensors_begin_with(const char *path,
                                      const sl_safetensors_entry_t *entries,
                                      size_t n, const char *key,
                                      const char *value,
                                      sl_safetensors_writer_t **writer_p)
{
    sl_safetensors_writer_t *writer = calloc(1, sizeof(*writer));
    /* "pt" is what loaders of PyTorch weights ask for */
    json_t *header = json_pack("{s:{s:s}}", metadata_key, "format", "pt");
    uint64_t begin = 0;
    sl_status_t status;
    size_t i;

    if (writer == NULL || header == NULL ||
        (writer->path = strdup(path)) == NULL ||
        (writer->n_bytes = calloc(n + 1, sizeof(*writer->n_bytes))) == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_abort,
                "%s: no host memory for %zu tensors", path, n);
    }
    writer->n = n;
    SL_TRY(status, sl_hash_stream_create(&writer->hash), err_abort);
    if (key != NULL &&
        json_object_set_new(json_object_get(header, metadata_key), key,
                            json_string(value)) != 0) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, err_abort,
                "%s: the metadata '%.200s' is not UTF-8, or there is no host "
                "memory",
                path, key);
    }
    for (i = 0; i < n; i++) {
        SL_TRY(status,
               describe(header, &entries[i], &begin, &writer->n_bytes[i]),
               err_abort);
    }
    SL_TRY(status, sl_file_begin(path, &writer->file), err_abort);
    SL_TRY(status, write_header(writer, header), err_abort);
    json_decref(header);
    *writer_p = writer;
    return SL_OK;

err_abort:
    json_decref(header);
    sl_safetensors_abort(writer);
    return status;
}

sl_status_t sl_safetensors_append(sl_safetensors_writer_t *writer,
                                  const float *values)
{
    sl_status_t status = SL_OK;
    size_t n_bytes;

    if (writer->n_done == writer->n) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "%s: all %zu tensors have been written already", writer->path,
                writer->n);
    }
    n_bytes = (size_t)writer->n_bytes[writer->n_done];
    if (n_bytes > 0 && put(writer, values, n_bytes) != n_bytes) {
        SL_FAIL(status, SL_ERR_IO, out, "%s: writing tensor %zu of %zu: %s",
                writer->path, writer->n_done + 1, writer->n, strerror(errno));
    }
    writer->n_done++;
out:
    return status;
}

static void writer_free(sl_safetensors_writer_t *writer)
{
    sl_hash_stream_destroy(writer->hash);
    free(writer->n_bytes);
    free(writer->path);
    free(writer);
}

sl_status_t sl_safetensors_end(sl_safetensors_writer_t *writer)
{
    uint64_t n_bytes, hash;

    return sl_safetensors_finish(writer, &n_bytes, &hash);
}

sl_status_t sl_safetensors_finish(sl_safetensors_writer_t *writer,
                                  uint64_t *n_bytes_p, uint64_t *hash_p)
{
    sl_status_t status;
    uint64_t hash;

    if (writer->n_done != writer->n) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, err_abort,
                "%s: %zu of %zu tensors were written", writer->path,
                writer->n_done, writer->n);
    }
    hash = sl_hash_stream_value(writer->hash);
    status = sl_file_end(writer->file);
    if (status >= 0) {
        *n_bytes_p = writer->file_bytes;
        *hash_p = hash;
    }
    writer_free(writer);
    return status;

err_abort:
    sl_safetensors_abort(writer);
    return status;
}

void sl_safetensors_abort(sl_safetensors_writer_t *writer)
{
    if (writer != NULL) {
        sl_file_abort(writer->file);
        writer_free(writer);
    }
}
