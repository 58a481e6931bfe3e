/* SPDX-License-Identifier: Apache-2.0 */
/* Strict numbers: the form is checked by hand, then the value is computed. */
#include "base/parse.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_internal.h"

enum {
    RANGE_BYTES = 96
};

typedef struct unit {
    const char *name;
    uint64_t bytes;
} unit_t;

static const unit_t units[] = {
    {"", 1},
    {"B", 1},
    {"kB", UINT64_C(1000)},
    {"MB", UINT64_C(1000000)},
    {"GB", UINT64_C(1000000000)},
    {"TB", UINT64_C(1000000000000)},
    {"KiB", UINT64_C(1) << 10},
    {"MiB", UINT64_C(1) << 20},
    {"GiB", UINT64_C(1) << 30},
    {"TiB", UINT64_C(1) << 40},
};

const char *sl_show(const char *text, char out[SL_SHOW_BYTES])
{
    const size_t room = SL_SHOW_BYTES - sizeof("...");
    size_t i;

    for (i = 0; text != NULL && text[i] != '\0' && i < room; i++) {
        const unsigned char c = (unsigned char)text[i];

        out[i] = (char)(c < 0x20 || c == 0x7F ? '?' : c);
    }
    out[i] = '\0';
    if (text != NULL && text[i] != '\0') {
        /* do not cut a UTF-8 character in two */
        while (i > 0 && ((unsigned char)text[i] & 0xC0) == 0x80) {
            i--;
        }
        memcpy(out + i, "...", sizeof("..."));
    }
    return out;
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Past a run of digits; `text` itself when there is none. */
static const char *skip_digits(const char *text)
{
    while (is_digit(*text)) {
        text++;
    }
    return text;
}

/* Past "0" or digits that start with 1..9; NULL for anything else. */
static const char *skip_whole(const char *text)
{
    const char *end = skip_digits(text);

    return end == text || (text[0] == '0' && end - text > 1) ? NULL : end;
}

static const char *int_range(int64_t min, int64_t max, char out[RANGE_BYTES])
{
    if (min == INT64_MIN && max == INT64_MAX) {
        (void)snprintf(out, RANGE_BYTES, "of 64 bits");
    } else if (max == INT64_MAX) {
        (void)snprintf(out, RANGE_BYTES, "of at least %" PRId64, min);
    } else if (min == INT64_MIN) {
        (void)snprintf(out, RANGE_BYTES, "of at most %" PRId64, max);
    } else {
        (void)snprintf(out, RANGE_BYTES, "from %" PRId64 " to %" PRId64, min,
                       max);
    }
    return out;
}

/* The value of a checked text; 0 when it does not fit 64 bits. */
static int int_value(const char *text, int64_t *value_p)
{
    const int is_negative = text[0] == '-';
    const uint64_t limit = (uint64_t)INT64_MAX + (is_negative ? 1 : 0);
    uint64_t value = 0;
    const char *p;

    for (p = text + is_negative; *p != '\0'; p++) {
        const uint64_t digit = (uint64_t)(*p - '0');

        if (value > (limit - digit) / 10) {
            return 0;
        }
        value = value * 10 + digit;
    }
    /* written so that INT64_MIN is never negated */
    if (is_negative && value > 0) {
        *value_p = -(int64_t)(value - 1) - 1;
    } else {
        *value_p = (int64_t)value;
    }
    return 1;
}

sl_status_t sl_parse_int(const char *what, const char *text, int64_t min,
                         int64_t max, int64_t *value_p)
{
    char shown[SL_SHOW_BYTES], range[RANGE_BYTES];
    const char *end;
    int64_t value;
    sl_status_t status;

    if (text == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "%s: no value given", what);
    }
    end = skip_whole(text[0] == '-' ? text + 1 : text);
    if (end == NULL || *end != '\0') {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "%s: '%s' is not an integer; allowed: digits only, without "
                "spaces, '+' or leading zeros, %s",
                what, sl_show(text, shown), int_range(min, max, range));
    }
    if (!int_value(text, &value) || value < min || value > max) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "%s: %s is out of range; allowed: an integer %s", what,
                sl_show(text, shown), int_range(min, max, range));
    }
    *value_p = value;
    return SL_OK;

out:
    return status;
}

static const char *float_range(double min, double max, char out[RANGE_BYTES])
{
    const int has_min = min > -HUGE_VAL;
    const int has_max = max < HUGE_VAL;

    if (has_min && has_max) {
        (void)snprintf(out, RANGE_BYTES, "from %.9g to %.9g", min, max);
    } else if (has_min) {
        (void)snprintf(out, RANGE_BYTES, "of at least %.9g", min);
    } else if (has_max) {
        (void)snprintf(out, RANGE_BYTES, "of at most %.9g", max);
    } else {
        (void)snprintf(out, RANGE_BYTES, "that is finite");
    }
    return out;
}

/* [-]whole[.digits][(e|E)[+|-]digits], all of the text. */
static int is_float(const char *text)
{
    const char *p = skip_whole(text[0] == '-' ? text + 1 : text);

    if (p != NULL && *p == '.') {
        p = is_digit(p[1]) ? skip_digits(p + 1) : NULL;
    }
    if (p != NULL && (*p == 'e' || *p == 'E')) {
        p += p[1] == '+' || p[1] == '-' ? 2 : 1;
        p = is_digit(*p) ? skip_digits(p) : NULL;
    }
    return p != NULL && *p == '\0';
}

/* Whether the digits before the exponent hold one that is not zero. */
static int has_nonzero_digit(const char *text)
{
    return text[strspn(text, "-.0")] >= '1' && text[strspn(text, "-.0")] <= '9';
}

sl_status_t sl_parse_float(const char *what, const char *text, double min,
                           double max, double *value_p)
{
    char shown[SL_SHOW_BYTES], range[RANGE_BYTES];
    locale_t c_locale, callers;
    double value;
    sl_status_t status;

    if (text == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "%s: no value given", what);
    }
    if (!is_float(text)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "%s: '%s' is not a number; allowed: a decimal number such as "
                "0.1 or 1e-3, %s",
                what, sl_show(text, shown), float_range(min, max, range));
    }

    /* strtod takes the decimal point of the locale; ours is always '.' */
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c_locale == (locale_t)0) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no memory for a locale",
                what);
    }
    callers = uselocale(c_locale);
    value = strtod(text, NULL);
    (void)uselocale(callers);
    freelocale(c_locale);

    if (!(fabs(value) < HUGE_VAL) ||
        (value >= 0 && value <= 0 && has_nonzero_digit(text)) ||
        !(value >= min && value <= max)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "%s: %s is out of range; allowed: a number %s", what,
                sl_show(text, shown), float_range(min, max, range));
    }
    *value_p = value;
    return SL_OK;

out:
    return status;
}

static const unit_t *find_unit(const char *name)
{
    size_t i;

    for (i = 0; i < sizeof(units) / sizeof(*units); i++) {
        if (strcmp(units[i].name, name) == 0) {
            return &units[i];
        }
    }
    return NULL;
}

/* unit * 0.d1d2..., rounded down; exact, as floor((a + floor(x)) / 10) is
 * floor((a + x) / 10) for an integer a. */
static uint64_t fraction_bytes(const char *first, const char *end,
                               uint64_t unit_bytes)
{
    uint64_t bytes = 0;

    while (end > first) {
        end--;
        bytes = ((uint64_t)(*end - '0') * unit_bytes + bytes) / 10;
    }
    return bytes;
}

/* whole digits * unit + more; 0 on overflow. */
static int whole_bytes(const char *first, const char *end, uint64_t unit_bytes,
                       uint64_t more, uint64_t *bytes_p)
{
    uint64_t value = 0;

    for (; first < end; first++) {
        const uint64_t digit = (uint64_t)(*first - '0');

        if (value > (UINT64_MAX - digit) / 10) {
            return 0;
        }
        value = value * 10 + digit;
    }
    if (value > (UINT64_MAX - more) / unit_bytes) {
        return 0;
    }
    *bytes_p = value * unit_bytes + more;
    return 1;
}

sl_status_t sl_parse_bytes(const char *what, const char *text,
                           uint64_t *bytes_p)
{
    char shown[SL_SHOW_BYTES];
    const char *whole_end, *end;
    const unit_t *unit = NULL;
    uint64_t fraction = 0;
    sl_status_t status;

    if (text == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "%s: no value given", what);
    }
    whole_end = skip_whole(text);
    end = whole_end;
    if (end != NULL && *end == '.') {
        end = is_digit(end[1]) ? skip_digits(end + 1) : NULL;
    }
    if (end != NULL) {
        unit = find_unit(end);
    }
    if (unit == NULL || (end > whole_end && unit->bytes == 1)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "%s: '%s' is not a size; allowed: digits and one of B, kB, "
                "MB, GB, TB, KiB, MiB, GiB, TiB, such as 4GB or 1.5GiB",
                what, sl_show(text, shown));
    }
    if (end > whole_end) {
        fraction = fraction_bytes(whole_end + 1, end, unit->bytes);
    }
    if (!whole_bytes(text, whole_end, unit->bytes, fraction, bytes_p)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "%s: %s is out of range; allowed: at most %" PRIu64 " bytes",
                what, sl_show(text, shown), UINT64_MAX);
    }
    return SL_OK;

out:
    return status;
}

void sl_format_bytes(uint64_t bytes, char *text, size_t text_bytes)
{
    static const char *const names[] = {"KiB", "MiB", "GiB",
                                        "TiB", "PiB", "EiB"};
    const size_t last = sizeof(names) / sizeof(*names) - 1;
    double value = (double)bytes / 1024;
    uint64_t hundredths;
    size_t i = 0;

    if (bytes < 1024) {
        (void)snprintf(text, text_bytes, "%" PRIu64 " B", bytes);
        return;
    }
    /* 1023.995 and more would print as 1024.00 */
    while (value >= 1023.995 && i < last) {
        value /= 1024;
        i++;
    }
    /* integers, so that the locale's decimal point does not show */
    hundredths = (uint64_t)(value * 100 + 0.5);
    (void)snprintf(text, text_bytes, "%" PRIu64 ".%02" PRIu64 " %s",
                   hundredths / 100, hundredths % 100, names[i]);
}
