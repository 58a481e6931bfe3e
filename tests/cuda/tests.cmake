# CUDA code over the stand-in. All programs are targets of cuda_tests.
if(SL_HAS_CXX)
    sl_cuda_standin_library(sl_cuda_standin)
#    sl_cuda_library(sl_cuda_on_standin standin)

    add_library(sl_cuda_test_kernels STATIC cuda/standin_kernels.cpp)
    set_target_properties(sl_cuda_test_kernels PROPERTIES CXX_STANDARD 17
        CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
    target_link_libraries(sl_cuda_test_kernels PUBLIC sl_cuda_standin)

    sl_test(cuda standin LINK sl_cuda_test_kernels)
    add_custom_target(cuda_tests DEPENDS test_cuda_standin)
endif()
