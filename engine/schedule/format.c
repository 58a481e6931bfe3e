/* SPDX-License-Identifier: Apache-2.0 */
/* The text form of instructions. */
#include <stdio.h>

#include "engine/schedule/schedule_internal.h"

const char *sl_instruction_kind_name(sl_instruction_kind_t kind)
{
    switch (kind) {
    case SL_INSTRUCTION_FORWARD:
        return "F";
    case SL_INSTRUCTION_RECOMPUTE:
        return "R";
    case SL_INSTRUCTION_BACKWARD:
        return "B";
    case SL_INSTRUCTION_RECV_FORWARD:
        return "rf";
    case SL_INSTRUCTION_SEND_FORWARD:
        return "sf";
    case SL_INSTRUCTION_RECV_BACKWARD:
        return "rb";
    case SL_INSTRUCTION_SEND_BACKWARD:
        return "sb";
    case SL_INSTRUCTION_UPDATE:
        return "U";
    }
    return "?";
}

void sl_instruction_format(const sl_instruction_t *instruction, char *text)
{
    if (instruction->kind == SL_INSTRUCTION_UPDATE) {
        (void)snprintf(text, SL_INSTRUCTION_TEXT_BYTES, "U");
    } else {
        (void)snprintf(text, SL_INSTRUCTION_TEXT_BYTES, "%s%d",
                       sl_instruction_kind_name(instruction->kind),
                       instruction->micro_batch);
    }
}

int sl_schedule_format(const sl_instruction_list_t *list, char *text,
                       size_t text_bytes)
{
    size_t used = 0, i;

    if (text_bytes > 0) {
        text[0] = '\0';
    }
    for (i = 0; i < list->n; i++) {
        char item[SL_INSTRUCTION_TEXT_BYTES];
        const int has_room = used < text_bytes;

        sl_instruction_format(&list->items[i], item);
        used += (size_t)snprintf(has_room ? text + used : NULL,
                                 has_room ? text_bytes - used : 0, "%s%s",
                                 i == 0 ? "" : " ", item);
    }
    return (int)used;
}
