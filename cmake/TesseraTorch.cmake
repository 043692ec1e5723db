# tessera_torch: the libtorch inside the installed `torch` wheel, by the path that Python reports.
#
# `find_package(Torch)` of a CUDA wheel asks for a CUDA toolkit; naming the libraries does not.
# Reads TESSERA_TORCH_DIR, or else asks TESSERA_PYTHON; sets TESSERA_TORCH_DIR and TESSERA_TORCH_VERSION.
find_program(TESSERA_PYTHON NAMES python3 python)
if(NOT TESSERA_TORCH_DIR)
  execute_process(
    COMMAND ${TESSERA_PYTHON} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE TESSERA_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed OR NOT TESSERA_TORCH_DIR)
    message(FATAL_ERROR "No torch for ${TESSERA_PYTHON}. Run `make deps`, or pass "
      "-DTESSERA_PYTHON=<python with torch> or -DTESSERA_TORCH_DIR=<.../site-packages/torch>.")
  endif()
endif()
if(NOT EXISTS ${TESSERA_TORCH_DIR}/version.py)
  message(FATAL_ERROR "No torch at ${TESSERA_TORCH_DIR}, which has no version.py; accepted: -DTESSERA_TORCH_DIR=<.../site-packages/torch>.")
endif()
file(STRINGS ${TESSERA_TORCH_DIR}/version.py TESSERA_TORCH_VERSION REGEX "^__version__")
string(REGEX REPLACE ".*'(.*)'.*" "\\1" TESSERA_TORCH_VERSION "${TESSERA_TORCH_VERSION}")
message(STATUS "tessera: libtorch ${TESSERA_TORCH_VERSION} at ${TESSERA_TORCH_DIR}")
if(NOT TESSERA_TORCH_VERSION MATCHES "^2\\.1[1-5]\\.")
  message(WARNING "tessera is known to compile with torch 2.11 to 2.15; this is ${TESSERA_TORCH_VERSION}.")
endif()

find_package(Threads REQUIRED)
add_library(tessera_torch INTERFACE)
target_include_directories(tessera_torch SYSTEM INTERFACE
  ${TESSERA_TORCH_DIR}/include ${TESSERA_TORCH_DIR}/include/torch/csrc/api/include)
target_compile_definitions(tessera_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
target_compile_features(tessera_torch INTERFACE cxx_std_20)
target_link_directories(tessera_torch INTERFACE ${TESSERA_TORCH_DIR}/lib)
# Wheels for CUDA export parts of a libstdc++ of their own, without what they call (pytorch 133437: std::filesystem::remove_all jumps to nothing). The
# loader takes a name from the first library that has it, in the order in which they are linked.
target_link_options(tessera_torch INTERFACE -Wl,--push-state,--no-as-needed,-lstdc++,--pop-state)
target_link_libraries(tessera_torch INTERFACE torch torch_cpu c10 Threads::Threads)
target_link_options(tessera_torch INTERFACE -Wl,-rpath,${TESSERA_TORCH_DIR}/lib)
if(EXISTS ${TESSERA_TORCH_DIR}/lib/libtorch_cuda.so)
  # Its CUDA libraries lie in other wheels, which the loader finds and the linker does not.
  target_link_options(tessera_torch INTERFACE -Wl,--allow-shlib-undefined)
endif()
