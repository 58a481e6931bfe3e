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
    add_library(sl_cuda_image_bed STATIC cuda/image_check.c)
    set_target_properties(sl_cuda_image_bed PROPERTIES C_EXTENSIONS OFF)
    target_link_libraries(sl_cuda_image_bed PUBLIC sl_cuda_bed
        PRIVATE $<BUILD_INTERFACE:sl_warnings>)
    foreach(name batch_norm conv2d dnn_attention image pool)
        sl_test(cuda ${name} LINK sl_cuda_image_bed)
        if(NOT SL_CUDA STREQUAL "STANDIN")
            set_tests_properties(cuda.${name} PROPERTIES LABELS gpu)
        endif()
    endforeach()
    if(NOT SL_CUDA STREQUAL "STANDIN")
        set_tests_properties(cuda.cross_entropy cuda.elementwise
            cuda.embedding cuda.layer_norm cuda.optimizer PROPERTIES
            LABELS gpu)
    endif()

    foreach(name blas linear attention)
        sl_test(cuda ${name} LINK sl_cuda_bed)
        target_sources(test_cuda_${name} PRIVATE cuda/layer_run.c)
        if(NOT SL_CUDA STREQUAL "STANDIN")
            set_tests_properties(cuda.${name} PROPERTIES LABELS gpu)
        endif()
    endforeach()
    target_sources(test_cuda_blas PRIVATE cuda/blas_values.c)
endif()

# The layers' own tests on a device, in each type of activations.
set(sl_cuda_layer_tests
    add
    attention
    batch_norm
    concat
    conv2d
    dropout
    embedding
    flatten
    gelu
    layer_norm
    linear
    pool
    relu
    softmax_cross_entropy
    upsample2d)
if(SL_HAVE_CUDA)
    set(label gpu)
    if(SL_CUDA STREQUAL "STANDIN")
        set(label cuda)
    endif()
    foreach(name IN LISTS sl_cuda_layer_tests)
        foreach(dtype f32 bf16 f16)
            add_test(NAME cuda.layers_${name}_${dtype}
                COMMAND test_layers_${name})
            set_tests_properties(cuda.layers_${name}_${dtype} PROPERTIES
                LABELS ${label} TIMEOUT 900 SKIP_RETURN_CODE 77
                ENVIRONMENT "${SL_TEST_ENVIRONMENT};SLUICE_TEST_LAYER_KIND=cuda;SLUICE_TEST_LAYER_DTYPE=${dtype}")
        endforeach()
    endforeach()
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
    sl_test(cuda standin_dnn LINK sl_cuda_test_kernels)
    sl_test(cuda memory LINK sl_memory)
    foreach(name devices op_manager sections share)
        sl_test(cuda ${name} LINK sl_scheduler sl_cuda_test_kernels)
    endforeach()

    # the op manager's own tests, on a device
    foreach(name op_manager op_stats pulse_ops share_gate)
        set(target test_cuda_scheduler_${name})
        add_executable(${target} scheduler/test_${name}.c)
        set_target_properties(${target} PROPERTIES C_EXTENSIONS OFF
            RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
        target_compile_definitions(${target} PRIVATE SL_TESTS_SCHEDULER_CUDA=1)
        target_link_libraries(${target} PRIVATE sl_scheduler sl_test_support
            $<BUILD_INTERFACE:sl_warnings>)
        add_test(NAME cuda.scheduler_${name} COMMAND ${target})
        set_tests_properties(cuda.scheduler_${name} PROPERTIES LABELS cuda
            TIMEOUT 300 ENVIRONMENT "${SL_TEST_ENVIRONMENT}")
    endforeach()

    # training, and the engine's own tests on CUDA devices. Memory is in pages as
    # by default; where limits are set to the byte, in small ones, as these round
    # them. Some have whole regions too.
    foreach(name gates loads training training_failures)
        sl_test(cuda ${name} LINK engine_fixture TIMEOUT 900)
        target_compile_definitions(test_cuda_${name} PRIVATE
            SL_TESTS_STANDIN=1)
    endforeach()
    set(sl_cuda_engine_environment ${SL_TEST_ENVIRONMENT}
        SLUICE_TEST_DEVICES=cuda)
    set(small_pages SL_STANDIN_PAGE_BYTES=4096)
    set(sl_cuda_engine_small engine fit fit_ranks limits memory_plan oom
        rank_failures replicas replica_failures repartition moving_replicas
        checkpoint_oom)
    # All that have devices. Not here, as there is none in them: checkpoint_fuzz
    # safetensors report (files and text), schedule cluster simulate
    # simulate_brute simulate_search rebalance (plans, and a policy in simulated
    # pipelines; repartition has the moves), world world_* (bytes of the host),
    # optimizer (kernels of CPUs; cuda.optimizer has the others).
    foreach(name engine exact replicas replica_failures ranks rank_failures
        moving_ranks moving_replicas missed overlap memory_plan repartition fit
        fit_ranks limits oom checkpoint checkpoint_files checkpoint_oom
        checkpoint_ranks)
        add_test(NAME cuda.engine_${name} COMMAND test_engine_${name})
        set(environment ${sl_cuda_engine_environment})
        if(name IN_LIST sl_cuda_engine_small)
            list(APPEND environment ${small_pages})
        endif()
        set_tests_properties(cuda.engine_${name} PROPERTIES LABELS cuda
            TIMEOUT 1200 ENVIRONMENT "${environment}")
    endforeach()
    foreach(name engine fit limits memory_plan oom)
        add_test(NAME cuda.engine_${name}_whole COMMAND test_engine_${name})
        set_tests_properties(cuda.engine_${name}_whole PROPERTIES LABELS cuda
            TIMEOUT 1200 ENVIRONMENT
            "${sl_cuda_engine_environment};SLUICE_NO_CUDA_VMM=1")
    endforeach()
    foreach(precision bf16 f16)
        add_test(NAME cuda.engine_exact_${precision} COMMAND test_engine_exact)
        set_tests_properties(cuda.engine_exact_${precision} PROPERTIES
            LABELS cuda TIMEOUT 1200 ENVIRONMENT
            "${sl_cuda_engine_environment};SLUICE_TEST_PRECISION=${precision}")
    endforeach()

    # batch norm and pools by cuDNN
    foreach(name exact memory_plan moving_replicas)
        add_test(NAME cuda.engine_${name}_cudnn COMMAND test_engine_${name})
        set(environment ${sl_cuda_engine_environment}
            SLUICE_TEST_CUDNN_IMAGES=1)
        if(name IN_LIST sl_cuda_engine_small)
            list(APPEND environment ${small_pages})
        endif()
        set_tests_properties(cuda.engine_${name}_cudnn PROPERTIES
            LABELS cuda TIMEOUT 1200 ENVIRONMENT "${environment}")
    endforeach()

    # tensors between ranks
    add_library(sl_transport_bed STATIC cuda/transport_bed.c
        cuda/transport_tests.c)
    set_target_properties(sl_transport_bed PROPERTIES C_EXTENSIONS OFF)
    target_link_libraries(sl_transport_bed PUBLIC sl_engine sl_test_support
        PRIVATE $<BUILD_INTERFACE:sl_warnings>)
    sl_test(cuda nccl_standin LINK sl_cuda_test_kernels)
    sl_test(cuda transport_staged LINK sl_transport_bed TIMEOUT 600)
    sl_test(cuda transport_nccl LINK sl_transport_bed TIMEOUT 600)
    sl_test(cuda transport_choice LINK rank_bed TIMEOUT 900)
    sl_test(cuda rank_failures LINK rank_bed TIMEOUT 900)
    foreach(transport staged nccl)
        foreach(name ranks rank_failures moving_ranks moving_replicas missed
            overlap fit_ranks checkpoint_ranks)
            add_test(NAME cuda.engine_${name}_${transport}
                COMMAND test_engine_${name})
            set(environment ${sl_cuda_engine_environment} SL_STANDIN_DEVICES=8
                SLUICE_TEST_TRANSPORT=${transport})
            if(name IN_LIST sl_cuda_engine_small)
                list(APPEND environment ${small_pages})
            endif()
            set_tests_properties(cuda.engine_${name}_${transport} PROPERTIES
                LABELS cuda TIMEOUT 1200 ENVIRONMENT "${environment}")
        endforeach()
    endforeach()

    if(NOT SL_SANITIZE MATCHES thread) # Open MPI is not instrumented
        foreach(transport staged nccl)
            add_test(NAME cuda.engine_processes_${transport} COMMAND
                ${CMAKE_CURRENT_SOURCE_DIR}/engine/world_ranks.sh
                $<TARGET_FILE:test_engine_ranks> mpi 3 processes)
            set(lsan ${CMAKE_CURRENT_SOURCE_DIR}/support/lsan_openmpi.supp)
            set_tests_properties(cuda.engine_processes_${transport} PROPERTIES
                LABELS cuda TIMEOUT 150 SKIP_RETURN_CODE 77 PROCESSORS 2
                ENVIRONMENT "${sl_cuda_engine_environment};\
SL_STANDIN_DEVICES=8;SLUICE_TEST_TRANSPORT=${transport};\
LSAN_OPTIONS=suppressions=${lsan};ASAN_OPTIONS=fast_unwind_on_malloc=0")
        endforeach()
    endif()
    add_test(NAME cuda.engine_ranks_nccl_bf16 COMMAND test_engine_ranks)
    set_tests_properties(cuda.engine_ranks_nccl_bf16 PROPERTIES LABELS cuda
        TIMEOUT 1200 ENVIRONMENT "${sl_cuda_engine_environment};\
SL_STANDIN_DEVICES=8;SLUICE_TEST_TRANSPORT=nccl;SLUICE_TEST_PRECISION=bf16")

    # an MPI that knows device memory
    add_library(sl_aware_mpi SHARED cuda/aware_mpi/aware_mpi.c)
    set_target_properties(sl_aware_mpi PROPERTIES C_EXTENSIONS OFF
        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    target_link_libraries(sl_aware_mpi PRIVATE MPI::MPI_C
        $<BUILD_INTERFACE:sl_warnings>)

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
                --build ${PROJECT_BINARY_DIR})
        set_tests_properties(cuda.gpu_script PROPERTIES LABELS cuda
            TIMEOUT 1800 RUN_SERIAL TRUE)
    endif()

    # Under thread checks: what is about threads. All else would take long
    # there, and runs under the others.
    if(SL_SANITIZE MATCHES thread)
        set_tests_properties(cuda.op_manager cuda.sections cuda.share
            cuda.scheduler_op_manager cuda.scheduler_op_stats
            cuda.scheduler_pulse_ops cuda.scheduler_share_gate
            cuda.memory_race cuda.memory_vmm_race cuda.nccl_standin
            cuda.transport_staged cuda.transport_nccl cuda.engine_missed_nccl
            PROPERTIES LABELS threads)
    endif()
endif()
