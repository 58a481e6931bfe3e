/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file model_config.h
 * A model from the `model:` part of a config.
 *
 * Either a built-in one:
 *
 *     model: {type: resnet, depth: 18, classes: 10}
 *
 * or a list of layers, each {type, name, from, and the type's attributes}.
 * `from` is the name of an earlier layer or a list of them; without it a
 * layer reads the one before. `data` and `target` are the batch's.
 *
 *     model:
 *       name: small
 *       layers:
 *         - {type: conv2d, out: 16, kernel: 3, pad: 1}
 *         - repeat: 3
 *           layers: [{type: conv2d, name: c, out: 16, kernel: 3, pad: 1}]
 *         - residual: [{type: conv2d, out: 16, kernel: 3, pad: 1}]
 *           shortcut: [{type: conv2d, out: 16, kernel: 1}]
 *           relu: true
 *         - {type: flatten}
 *         - {type: linear, out: 10}
 *         - {type: softmax_cross_entropy}
 *
 * `repeat` gives the names in it a suffix ".0", ".1", ...; a `from` there
 * means the latest layer written with that name. `residual` ends with an
 * `add` (its attributes: relu, dropout; its `name`) of the shortcut's end,
 * or of what came in, and the branch's end.
 */
#ifndef SL_LAYERS_MODEL_CONFIG_H
#define SL_LAYERS_MODEL_CONFIG_H

#include "base/yaml.h"
#include "layers/layers.h"

SL_BEGIN_DECLS

enum {
    SL_MODEL_MAX_LAYERS = 100000
};

/**
 * Build a model.
 *
 * @param[in]  node         the `model` mapping, borrowed for the call
 * @param[in]  data, target one sample's shapes, dims[0] = 1
 * @param[out] model_p      owned by the caller
 * @return SL_OK, SL_ERR_CONFIG (naming the line), SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t
sl_model_from_yaml(const sl_yaml_node_t *node, const sl_tensor_desc_t *data,
                   const sl_tensor_desc_t *target, sl_model_t **model_p);

SL_END_DECLS
#endif /* SL_LAYERS_MODEL_CONFIG_H */
