# How tests are registered. A test file is one ctest (per rank count), so that a failure names its
# topic. Labels say what a test is: unit, emulation, gpu, ranks, bindings, conformance, faults,
# perf, rooms, install, lint, model, sanitizer, fuzz; slow keeps it out of the default run (./run
# test --all).

find_package(Catch2 REQUIRED)
cmake_host_system_information(RESULT GUOZHUANG_CORES QUERY NUMBER_OF_LOGICAL_CORES)

# guozhuang_keeps_cores_busy(SECONDS TEST...): tests that compute on every core, and how long each
# takes on two. ctest starts the longest first and runs one of them at a time. Under ./run test each
# takes one of the three processors that are counted for a core: tests that are ranks, which mostly
# wait, run beside them. With more, these would start last, since so many are seldom free at once.
function(guozhuang_keeps_cores_busy seconds)
  set_tests_properties(${ARGN} PROPERTIES PROCESSORS ${GUOZHUANG_CORES} RESOURCE_LOCK cores
    COST ${seconds})
endfunction()

# In seconds by the clock, for a machine that does much else. The test programs that have a watchdog
# (tests/support) end a test that hangs sooner, and say which one it is.
set(GUOZHUANG_TEST_TIMEOUT 900)
set(GUOZHUANG_SLOW_TEST_TIMEOUT 3600)

# Files become tags, so test cases need none to be found. A selection that matches nothing is a
# failure: Catch2 3 does that unasked.
set(GUOZHUANG_CATCH_ARGUMENTS --filenames-as-tags)
if(Catch2_VERSION VERSION_LESS 3)
  list(APPEND GUOZHUANG_CATCH_ARGUMENTS --warn NoTests --use-colour no)
endif()

if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  list(APPEND GUOZHUANG_CATCH_ARGUMENTS --case-timeout 240)
endif()

# Catch's implementation and our watchdog, compiled once for all test programs.
add_library(guozhuang_test_runner OBJECT
  ${PROJECT_SOURCE_DIR}/tests/support/runner/runner.cpp
  ${PROJECT_SOURCE_DIR}/tests/support/runner/watchdog.cpp)
set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/support/runner/runner.cpp PROPERTIES
  COMPILE_OPTIONS "-O0;-g0" SKIP_UNITY_BUILD_INCLUSION ON)
target_include_directories(guozhuang_test_runner PUBLIC ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(guozhuang_test_runner PUBLIC guozhuang_options Catch2::Catch2
  Threads::Threads)

# The cases that run as threads as well as under mpirun, compiled once for both: through the public
# API, whose definitions the programs bring.
set(cases)
foreach(file cases/arena_cases cases/async_cases cases/bad_input_source cases/bad_inputs
    cases/batch_cases cases/error_cases cases/in_place_cases cases/join_cases
    cases/operation_cases cases/operation_sweeps cases/output_cases cases/process_set_cases
    cases/random_operations cases/training_cases cases/unwinding_cases oracles/adasum_oracle
    oracles/reduction_oracle runner/report tensors/tensors)
  list(APPEND cases ${PROJECT_SOURCE_DIR}/tests/support/${file}.cpp)
endforeach()
add_library(guozhuang_test_cases STATIC ${cases})
target_include_directories(guozhuang_test_cases PUBLIC ${PROJECT_SOURCE_DIR}/tests
  PRIVATE $<TARGET_PROPERTY:guozhuang::guozhuang,INTERFACE_INCLUDE_DIRECTORIES>)
target_link_libraries(guozhuang_test_cases PRIVATE guozhuang_options)

# guozhuang_add_topics(LABEL PROGRAM FILE...): one ctest LABEL.NAME for each NAME_test.cpp.
function(guozhuang_add_topics label program)
  foreach(file ${ARGN})
    string(REPLACE "_test.cpp" "" topic ${file})
    add_test(NAME ${label}.${topic} COMMAND ${program} ${GUOZHUANG_CATCH_ARGUMENTS}
      "[#${topic}_test]~[slow]")
    set_tests_properties(${label}.${topic} PROPERTIES LABELS ${label} PROCESSORS 2
      TIMEOUT ${GUOZHUANG_TEST_TIMEOUT})
  endforeach()
endfunction()

# guozhuang_add_unit_tests(PROGRAM FILE... [SLOW FILE...]): one ctest unit.NAME for each
# NAME_test.cpp; the files under SLOW also have test cases tagged [.slow], which become
# unit.NAME.slow.
function(guozhuang_add_unit_tests program)
  cmake_parse_arguments(TEST "" "" "SLOW" ${ARGN})
  guozhuang_add_topics(unit ${program} ${TEST_UNPARSED_ARGUMENTS})
  foreach(file ${TEST_SLOW})
    string(REPLACE "_test.cpp" "" topic ${file})
    add_test(NAME unit.${topic}.slow COMMAND ${program} ${GUOZHUANG_CATCH_ARGUMENTS}
      --case-timeout 900 "[#${topic}_test][slow]")
    set_tests_properties(unit.${topic}.slow PROPERTIES LABELS "unit;slow"
      TIMEOUT ${GUOZHUANG_SLOW_TEST_TIMEOUT})
  endforeach()
endfunction()

# guozhuang_mpirun(VARIABLE RANKS): the command that starts RANKS processes on this machine, more
# than it has cores if need be. They are not bound to cores, and let others go on while they wait:
# the tests that ctest runs beside each other would be bound to the same ones, and would wait for
# ranks that spin.
set(GUOZHUANG_MPI_OPTIONS --oversubscribe --bind-to none --mca mpi_yield_when_idle 1)
function(guozhuang_mpirun variable ranks)
  set(${variable} ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${GUOZHUANG_MPI_OPTIONS}
    PARENT_SCOPE)
endfunction()

# guozhuang_add_mpi_test(NAME RANKS COMMAND...): one run of a command as that many ranks.
function(guozhuang_add_mpi_test name ranks)
  guozhuang_mpirun(mpirun ${ranks})
  add_test(NAME ${name} COMMAND ${mpirun} ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS ranks PROCESSORS ${ranks}
    TIMEOUT ${GUOZHUANG_TEST_TIMEOUT}
    ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
endfunction()

# guozhuang_add_mpi_test_that_ends(NAME RANKS CODE COUNT PATTERN COMMAND...): the same of a command
# whose ranks end with that code, having said so many lines like the pattern. What mpirun says
# counts, too.
function(guozhuang_add_mpi_test_that_ends name ranks code count pattern)
  guozhuang_mpirun(mpirun ${ranks})
  add_test(NAME ${name} COMMAND ${PROJECT_SOURCE_DIR}/tests/support/runner/expect.sh
    ${code} ${count} ${pattern} ${mpirun} ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS ranks PROCESSORS ${ranks}
    TIMEOUT ${GUOZHUANG_TEST_TIMEOUT}
    ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
endfunction()

# guozhuang_add_hosts_test(NAME HOSTS COMMAND...): one run of a command on simulated hosts, HOSTS
# being the host of each rank: "0;0;1".
function(guozhuang_add_hosts_test name hosts)
  set(job)
  foreach(host ${hosts})
    list(APPEND job : ${MPIEXEC_NUMPROC_FLAG} 1 -x GUOZHUANG_HOST=${host} ${ARGN})
  endforeach()
  list(POP_FRONT job)
  list(LENGTH hosts ranks)
  add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} ${GUOZHUANG_MPI_OPTIONS} ${job})
  set_tests_properties(${name} PROPERTIES LABELS ranks PROCESSORS ${ranks}
    TIMEOUT ${GUOZHUANG_TEST_TIMEOUT}
    ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
endfunction()

# guozhuang_add_rank_tests(PROGRAM FILE... RANKS N... [MESSAGES FILE...] [SLOW FILE...]): one ctest
# ranks.NAME.npN for each NAME_test.cpp and N. The files under MESSAGES also run as
# ranks.NAME.messages, on three ranks that share no memory. The files under SLOW also have test
# cases tagged [.slow], which run on two ranks as ranks.NAME.slow.
function(guozhuang_add_rank_tests program)
  cmake_parse_arguments(TEST "" "" "RANKS;MESSAGES;SLOW" ${ARGN})
  foreach(file ${TEST_UNPARSED_ARGUMENTS})
    string(REPLACE "_test.cpp" "" topic ${file})
    foreach(ranks ${TEST_RANKS})
      guozhuang_add_mpi_test(ranks.${topic}.np${ranks} ${ranks} $<TARGET_FILE:${program}>
        ${GUOZHUANG_CATCH_ARGUMENTS} "[#${topic}_test]~[slow]")
    endforeach()
  endforeach()
  foreach(file ${TEST_MESSAGES})
    string(REPLACE "_test.cpp" "" topic ${file})
    guozhuang_add_mpi_test(ranks.${topic}.messages 3 $<TARGET_FILE:${program}>
      ${GUOZHUANG_CATCH_ARGUMENTS} "[#${topic}_test]~[slow]")
    set_property(TEST ranks.${topic}.messages APPEND PROPERTY ENVIRONMENT GUOZHUANG_SHARED_MEMORY=0)
  endforeach()
  foreach(file ${TEST_SLOW})
    string(REPLACE "_test.cpp" "" topic ${file})
    guozhuang_add_mpi_test(ranks.${topic}.slow 2 $<TARGET_FILE:${program}>
      ${GUOZHUANG_CATCH_ARGUMENTS} --case-timeout 900 "[#${topic}_test][slow]")
    set_tests_properties(ranks.${topic}.slow PROPERTIES LABELS "ranks;slow"
      TIMEOUT ${GUOZHUANG_SLOW_TEST_TIMEOUT})
  endforeach()
endfunction()
