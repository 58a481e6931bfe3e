/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file library_types.h
 * The stand-in's own declarations of element types, with the numbers of
 * CUDA 13.
 */
#ifndef SL_TESTS_CUDA_STANDIN_LIBRARY_TYPES_H
#define SL_TESTS_CUDA_STANDIN_LIBRARY_TYPES_H

typedef enum cudaDataType_t {
    CUDA_R_32F = 0,
    CUDA_R_16F = 2,
    CUDA_R_16BF = 14
} cudaDataType;

typedef enum cudaDataType_t cudaDataType_t;

#endif /* SL_TESTS_CUDA_STANDIN_LIBRARY_TYPES_H */
