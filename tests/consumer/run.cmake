# Installs BUILD under WORK, then configures, builds and runs SOURCE against it.
file(REMOVE_RECURSE ${WORK})
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
# Expects that configuring SOURCE with `arguments` fails and says `text`.
function(expect_refusal text)
  execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${SOURCE} -B ${WORK}/refused ${ARGN}
    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")  # CMake wraps lines
  string(FIND "${said}" "${text}" at)
  if(NOT failed OR at EQUAL -1)
    message(FATAL_ERROR "expected a refusal that says \"${text}\", got ${failed}: ${said}")
  endif()
  file(REMOVE_RECURSE ${WORK}/refused)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} -G Ninja -S ${SOURCE} -B ${WORK}/build -DCMAKE_PREFIX_PATH=${WORK}/prefix -DCMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer)
expect_refusal("is a build tree; install it" -DCMAKE_PREFIX_PATH=${BUILD})
expect_refusal("No torch at ${WORK}, which has no version.py" -DCMAKE_PREFIX_PATH=${WORK}/prefix -DTESSERA_TORCH_DIR=${WORK})
