# CUDA devices. Against the stand-in (label cuda) everything runs on the CPU;
# against the toolkit (label gpu) it skips where there is no GPU.
set(sl_cuda_kernel_tests
    cross_entropy elementwise embedding layer_norm optimizer)

if(SL_HAVE_CUDA)
    add_library(sl_cuda_bed STATIC cuda/kernel_bed.c)
    set_target_properties(sl_cuda_bed PROPERTIES C_EXTENSIONS OFF)
    target_link_libraries(sl_cuda_bed PUBLIC sl_engine sl_test_support
        PRIVATE $<BUILD_INTERFACE:sl_warnings>)
    foreach(name IN LISTS sl_cuda_kernel_tests)
        sl_test(cuda ${name} LINK sl_cuda_bed)
    endforeach()
    if(NOT SL_CUDA STREQUAL "STANDIN")
        set_tests_properties(cuda.cross_entropy cuda.elementwise
            cuda.embedding cuda.layer_norm cuda.optimizer PROPERTIES
            LABELS gpu)
    endif()
endif()

if(SL_CUDA STREQUAL "STANDIN")
    add_library(sl_cuda_test_kernels_code STATIC cuda/standin_kernels.cpp)
    set_target_properties(sl_cuda_test_kernels_code PROPERTIES CXX_STANDARD 17
        CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
    target_link_libraries(sl_cuda_test_kernels_code PUBLIC sl_cuda_standin)
    add_library(sl_cuda_test_kernels INTERFACE)
    add_dependencies(sl_cuda_test_kernels sl_cuda_test_kernels_code)
    target_link_libraries(sl_cuda_test_kernels INTERFACE
        $<TARGET_FILE:sl_cuda_test_kernels_code> sl_cuda_standin stdc++)

    sl_test(cuda standin LINK sl_cuda_test_kernels)
    sl_test(cuda standin_failures LINK sl_cuda_test_kernels)
    sl_test(cuda memory LINK sl_memory)

    sl_test(cuda memory_vmm LINK sl_cuda_test_kernels sl_memory)

    # the allocator's own tests, on the memory of a device: regions that are
    # whole, and regions that give parts of themselves back
    foreach(name alloc antman budget limit model pain race)
        foreach(mode 1 2)
            set(test memory_${name})
            if(mode EQUAL 2)
                set(test memory_vmm_${name})
            endif()
            add_executable(test_cuda_${test} memory/test_${name}.c)
            set_target_properties(test_cuda_${test} PROPERTIES C_EXTENSIONS OFF
                RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
            target_compile_definitions(test_cuda_${test} PRIVATE
                SL_TESTS_MEMORY_CUDA=${mode})
            target_link_libraries(test_cuda_${test} PRIVATE sl_memory
                sl_test_support $<BUILD_INTERFACE:sl_warnings>)
            add_test(NAME cuda.${test} COMMAND test_cuda_${test})
            set_tests_properties(cuda.${test} PROPERTIES LABELS cuda
                TIMEOUT 300)
        endforeach()
    endforeach()

    # the script for a real GPU: its parts, tiny
    if(NOT SL_SANITIZE)
        add_test(NAME cuda.gpu_script
            COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/gpu/run.sh --standin
                --build ${PROJECT_BINARY_DIR} --only doctor,ops)
        set_tests_properties(cuda.gpu_script PROPERTIES LABELS cuda
            TIMEOUT 900 RUN_SERIAL TRUE)
    endif()
endif()
