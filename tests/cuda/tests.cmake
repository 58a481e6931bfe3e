# CUDA code over the stand-in; all its programs are built by cuda_tests. In a
# build with the toolkit the same kernel tests also run on a GPU, label gpu,
# and skip where there is none.
set(sl_cuda_kernel_tests
    cross_entropy elementwise embedding layer_norm optimizer)

if(SL_HAS_CXX)
    sl_cuda_standin_library(sl_cuda_standin)
    sl_cuda_library(sl_cuda_on_standin standin)

    add_library(sl_cuda_test_kernels STATIC cuda/standin_kernels.cpp)
    set_target_properties(sl_cuda_test_kernels PROPERTIES CXX_STANDARD 17
        CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
    target_link_libraries(sl_cuda_test_kernels PUBLIC sl_cuda_standin)

    add_library(sl_cuda_bed STATIC cuda/kernel_bed.c)
    set_target_properties(sl_cuda_bed PROPERTIES C_EXTENSIONS OFF)
    target_link_libraries(sl_cuda_bed PUBLIC sl_cuda_on_standin sl_engine
        sl_test_support PRIVATE $<BUILD_INTERFACE:sl_warnings>)

    add_custom_target(cuda_tests)
    sl_test(cuda standin LINK sl_cuda_test_kernels)
    sl_test(cuda standin_failures LINK sl_cuda_test_kernels)
    sl_test(cuda memory LINK sl_cuda_on_standin_memory)
    add_dependencies(cuda_tests test_cuda_standin test_cuda_standin_failures
        test_cuda_memory)
    foreach(name IN LISTS sl_cuda_kernel_tests)
        sl_test(cuda ${name} LINK sl_cuda_bed)
        add_dependencies(cuda_tests test_cuda_${name})
    endforeach()

    # the allocator's own tests, on the memory of a device
    foreach(name alloc antman budget limit model pain race)
        set(target test_cuda_memory_${name})
        add_executable(${target} memory/test_${name}.c)
        set_target_properties(${target} PROPERTIES C_EXTENSIONS OFF
            RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
        target_compile_definitions(${target} PRIVATE SL_TESTS_MEMORY_CUDA=1)
        target_link_libraries(${target} PRIVATE sl_cuda_on_standin_memory
            sl_test_support $<BUILD_INTERFACE:sl_warnings>)
        add_test(NAME cuda.memory_${name} COMMAND ${target})
        set_tests_properties(cuda.memory_${name} PROPERTIES LABELS cuda
            TIMEOUT 300)
        add_dependencies(cuda_tests ${target})
    endforeach()
endif()

# A GPU's tests: compiled and linked wherever the toolkit is.
if(SL_HAS_CUDA)
    add_library(sl_gpu_bed STATIC cuda/kernel_bed.c)
    set_target_properties(sl_gpu_bed PROPERTIES C_EXTENSIONS OFF)
    target_link_libraries(sl_gpu_bed PUBLIC sl_cuda sl_engine
        sl_test_support PRIVATE $<BUILD_INTERFACE:sl_warnings>)
    add_custom_target(gpu_tests)
    foreach(name IN LISTS sl_cuda_kernel_tests)
        set(target test_gpu_${name})
        add_executable(${target} cuda/test_${name}.c)
        add_dependencies(gpu_tests ${target})
        set_target_properties(${target} PROPERTIES C_EXTENSIONS OFF
            LINKER_LANGUAGE CXX
            RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
        target_link_libraries(${target} PRIVATE sl_gpu_bed
            $<BUILD_INTERFACE:sl_warnings>)
        add_test(NAME gpu.${name} COMMAND ${target})
        set_tests_properties(gpu.${name} PROPERTIES LABELS gpu TIMEOUT 300
            SKIP_RETURN_CODE 77)
    endforeach()
endif()
