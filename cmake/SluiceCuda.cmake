# CUDA: what is built against the toolkit (SL_CUDA=ON, preset cuda), and the
# same sources against the stand-in of tests/cuda_standin, which needs no
# toolkit. Both are static libraries named by sl_cuda_library().

set(SL_CUDA AUTO CACHE STRING "CUDA devices: AUTO (report only), ON, OFF")
set_property(CACHE SL_CUDA PROPERTY STRINGS AUTO ON OFF)
set(SL_CUDA_ARCHITECTURES 80-real 90-real 100-real CACHE STRING
    "GPU architectures that kernels are compiled for")

if(SL_CUDA STREQUAL "OFF")
    message(STATUS "CUDA: off")
else()
    find_package(CUDAToolkit 12.0 QUIET)
    if(CUDAToolkit_FOUND)
        get_filename_component(sl_cuda_root ${CUDAToolkit_BIN_DIR} DIRECTORY)
    endif()
    if(SL_CUDA STREQUAL "AUTO" AND CUDAToolkit_FOUND)
        message(STATUS "CUDA: not built; toolkit ${CUDAToolkit_VERSION} is in "
            "${sl_cuda_root} (use it: --preset cuda)")
    elseif(SL_CUDA STREQUAL "AUTO")
        message(STATUS "CUDA: not built; no toolkit found")
    elseif(NOT CUDAToolkit_FOUND)
        message(FATAL_ERROR "CUDA: asked for (SL_CUDA=ON) and no toolkit of "
            "version 12 or newer found; -DCUDAToolkit_ROOT= names its folder")
    else()
        message(STATUS "CUDA: toolkit ${CUDAToolkit_VERSION} in "
            "${sl_cuda_root}, for ${SL_CUDA_ARCHITECTURES}")
        set(SL_HAS_CUDA 1)
        set(CMAKE_CUDA_ARCHITECTURES ${SL_CUDA_ARCHITECTURES})
        if(NOT CMAKE_CUDA_COMPILER)
            set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
        endif()
        enable_language(CUDA)
    endif()
endif()

# The stand-in's kernels are C++: without a compiler its tests are left out.
if(SL_TESTS OR SL_HAS_CUDA)
    include(CheckLanguage)
    check_language(CXX)
    if(CMAKE_CXX_COMPILER)
        enable_language(CXX)
        set(SL_HAS_CXX 1)
    else()
        message(STATUS "CUDA: no C++ compiler: its stand-in is not tested")
    endif()
endif()

set(sl_cuda_c_sources
    memory/cuda_status.c
    memory/ops_cuda.c)
set(sl_cuda_kernel_sources
    layers/cuda/dropout.cu
    layers/cuda/elementwise.cu
    layers/cuda/embedding.cu
    layers/cuda/layer_norm.cu
    layers/cuda/optimizer.cu
    layers/cuda/softmax_cross_entropy.cu
    layers/cuda/sum_squares.cu)

# sl_cuda_library(<target> toolkit|standin): the kernels, and <target>_memory
# in C. Sums and products stay apart in kernels, so that their bits do not
# depend on the compiler; they wait for memory anyway.
function(sl_cuda_library target kind)
    if(kind STREQUAL "standin")
        set(runtime sl_cuda_standin)
    else()
        set(runtime CUDA::cudart)
    endif()
    list(TRANSFORM sl_cuda_c_sources PREPEND ${PROJECT_SOURCE_DIR}/
        OUTPUT_VARIABLE sources)
    add_library(${target}_memory STATIC ${sources})
    set_target_properties(${target}_memory PROPERTIES C_EXTENSIONS OFF
        POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(${target}_memory PUBLIC sl_memory sl_base ${runtime}
        PRIVATE $<BUILD_INTERFACE:sl_warnings>)

    list(TRANSFORM sl_cuda_kernel_sources PREPEND ${PROJECT_SOURCE_DIR}/
        OUTPUT_VARIABLE sources)
    set(werror $<$<BOOL:${SL_WERROR}>:-Werror>)
    if(kind STREQUAL "standin")
        # as C++, under other names: nvcc may have the .cu in the same build
        set(copies)
        foreach(source IN LISTS sources)
            get_filename_component(name ${source} NAME_WE)
            set(copy ${CMAKE_CURRENT_BINARY_DIR}/standin_${name}.cpp)
            file(CONFIGURE OUTPUT ${copy} CONTENT "#include \"${source}\"\n")
            list(APPEND copies ${copy})
        endforeach()
        add_library(${target} STATIC ${copies})
        set_source_files_properties(${copies} PROPERTIES
            COMPILE_OPTIONS "-ffp-contract=off;-Wall;-Wextra;${werror}")
        target_link_libraries(${target} PUBLIC sl_flags)
    else()
        add_library(${target} STATIC ${sources})
        target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
        target_compile_options(${target} PRIVATE -fmad=false
            -Xcompiler=-Wall,-Wextra)
        if(SL_WERROR)
            target_compile_options(${target} PRIVATE
                "SHELL:-Werror all-warnings" -Xcompiler=-Werror)
        endif()
    endif()
    set_target_properties(${target} PROPERTIES
        CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
        CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
        POSITION_INDEPENDENT_CODE ON)
    # no flags of the C code: nvcc has others
    target_link_libraries(${target} PUBLIC ${runtime}
        $<LINK_ONLY:${target}_memory>)
endfunction()

# The CUDA runtime that runs on a CPU; its headers come before the toolkit's.
function(sl_cuda_standin_library target)
    set(sources block copy launch memory order runtime stream)
    list(TRANSFORM sources PREPEND
        ${PROJECT_SOURCE_DIR}/tests/cuda_standin/)
    list(TRANSFORM sources APPEND .c)
    add_library(${target} STATIC ${sources})
    set_target_properties(${target} PROPERTIES C_EXTENSIONS OFF)
    target_include_directories(${target} BEFORE PUBLIC
        ${PROJECT_SOURCE_DIR}/tests/cuda_standin/include
        ${PROJECT_SOURCE_DIR}/tests/cuda_standin)
    target_link_libraries(${target} PUBLIC sl_flags
        PRIVATE $<BUILD_INTERFACE:sl_warnings>)
endfunction()
