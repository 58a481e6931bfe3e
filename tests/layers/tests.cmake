add_library(sl_layer_check STATIC layers/layer_bed.c layers/layer_check.c
    layers/layer_tensor.c)
if(SL_HAVE_CUDA)
    target_sources(sl_layer_check PRIVATE layers/layer_bed_cuda.c)
endif()
set_target_properties(sl_layer_check PROPERTIES C_EXTENSIONS OFF)
target_link_libraries(sl_layer_check PUBLIC sl_test_support sl_layers
    PRIVATE $<BUILD_INTERFACE:sl_warnings>)

foreach(name
    add attention attr batch_norm concat conv2d dropout embedding flatten gelu
    gemm layer_norm linear models pool registry relu softmax_cross_entropy
    tensor upsample2d vec_math)
    sl_test(layers ${name} LINK sl_layer_check)
endforeach()
sl_test(layers dnnl WRAP_ALLOC LINK sl_layer_check)
sl_test(layers model WRAP_ALLOC LINK sl_layer_check)
sl_test(layers model_config WRAP_ALLOC LINK sl_layer_check)

if(SL_HAVE_CUDA)
    sl_test(layers cuda LINK sl_layer_check)
    set_tests_properties(layers.cuda PROPERTIES LABELS cuda)
    if(NOT SL_CUDA STREQUAL "STANDIN")
        set_tests_properties(layers.cuda PROPERTIES LABELS gpu)
    endif()
endif()

# Once more with blocks of 8 channels, as on processors without AVX-512.
foreach(name conv2d batch_norm pool concat upsample2d flatten)
    if(TARGET test_layers_${name})
        add_test(NAME layers.${name}.avx2 COMMAND test_layers_${name})
        set_tests_properties(layers.${name}.avx2 PROPERTIES LABELS layers
            TIMEOUT 300
            ENVIRONMENT "${SL_TEST_ENVIRONMENT};DNNL_MAX_CPU_ISA=AVX2")
    endif()
endforeach()
