# The shared library exports octavo_* and octavo::* and nothing else, and has the soname that its major version promises.
#
# Toolchains that force symbols into a dynamic table (_init, _fini, __bss_start, _edata, _end of old linkers) are let
# through by name; the version script makes them local where the linker allows it.
execute_process(COMMAND ${NM} -D --defined-only --demangle --format=posix ${LIBRARY} OUTPUT_VARIABLE listing
  COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE ";" "," listing "${listing}")
string(REGEX REPLACE "\n$" "" listing "${listing}")
string(REPLACE "\n" ";" lines "${listing}")
set(exported 0)
set(strangers "")
foreach(line IN LISTS lines)
  if(line MATCHES "^(octavo_|octavo::)")
    math(EXPR exported "${exported} + 1")
  elseif(NOT line MATCHES "^(_init|_fini|__bss_start|_edata|_end) ")
    string(APPEND strangers "  ${line}\n")
  endif()
endforeach()
if(NOT strangers STREQUAL "")
  message(FATAL_ERROR "${LIBRARY} exports symbols that are not Octavo's:\n${strangers}")
endif()
foreach(needed "octavo_attention " "octavo_last_error " "octavo::attention" "octavo::make_problem" "octavo::Plan::attend")
  if(NOT listing MATCHES "(^|\n)${needed}")
    message(FATAL_ERROR "${LIBRARY} does not export ${needed}; it exports:\n${listing}")
  endif()
endforeach()

execute_process(COMMAND ${READELF} -d ${LIBRARY} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
if(NOT dynamic MATCHES "SONAME[^\n]*\\[${SONAME}\\]")
  message(FATAL_ERROR "${LIBRARY} does not have the soname ${SONAME}:\n${dynamic}")
endif()
message(STATUS "${exported} symbols exported, all of them Octavo's; soname ${SONAME}")
