# tessera::torch: the libtorch inside the installed `torch` wheel, by the path that Python reports.
#
# `find_package(Torch)` of a CUDA wheel asks for a CUDA toolkit; naming the libraries does not.
if(NOT TESSERA_TORCH_DIR)
  find_program(TESSERA_PYTHON NAMES python3 python)
  execute_process(
    COMMAND ${TESSERA_PYTHON} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE TESSERA_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  if(failed OR NOT TESSERA_TORCH_DIR)
    message(FATAL_ERROR "No torch for ${TESSERA_PYTHON}. Run `make deps`, or pass "
      "-DTESSERA_PYTHON=<python with torch> or -DTESSERA_TORCH_DIR=<.../site-packages/torch>.")
  endif()
endif()
message(STATUS "tessera: libtorch at ${TESSERA_TORCH_DIR}")

add_library(tessera_torch INTERFACE)
target_include_directories(tessera_torch SYSTEM INTERFACE
  ${TESSERA_TORCH_DIR}/include ${TESSERA_TORCH_DIR}/include/torch/csrc/api/include)
target_compile_definitions(tessera_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
target_link_directories(tessera_torch INTERFACE ${TESSERA_TORCH_DIR}/lib)
target_link_libraries(tessera_torch INTERFACE torch torch_cpu c10)
target_link_options(tessera_torch INTERFACE -Wl,-rpath,${TESSERA_TORCH_DIR}/lib)
find_package(Threads REQUIRED)
target_link_libraries(tessera_torch INTERFACE Threads::Threads)
