# What compiles BPF programs: NETSUM_HAS_BPF says whether clang, bpftool and libbpf are all here.
find_program(NETSUM_BPF_CLANG NAMES clang-14 clang)
find_program(NETSUM_BPFTOOL NAMES bpftool PATHS /usr/sbin)
find_path(NETSUM_BPF_INCLUDE bpf/bpf_helpers.h)
find_library(NETSUM_BPF_LIBRARY bpf)
if(NETSUM_BPF_CLANG AND NETSUM_BPFTOOL AND NETSUM_BPF_INCLUDE AND NETSUM_BPF_LIBRARY)
  set(NETSUM_HAS_BPF TRUE)
endif()

# netsum_bpf_skeleton(<name> <variable>): compiles <name>.bpf.c of this folder and makes the header
# "<folder>/<name>.skel.h", by which C++ opens it as <name>_bpf. The header's path goes into <variable>, to be
# listed among a target's sources; netsum_bpf_includes(<target>) lets the target include it.
function(netsum_bpf_skeleton name variable)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.bpf.o)
  set(skeleton ${PROJECT_BINARY_DIR}/generated/${folder}/${name}.skel.h)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/generated/${folder})
  # The object is part of the skeleton. Without paths of this checkout in it, ccache has what includes it for every clone.
  add_custom_command(OUTPUT ${skeleton}
    COMMAND ${NETSUM_BPF_CLANG} -O2 -g -ffile-prefix-map=${PROJECT_SOURCE_DIR}/= -fdebug-compilation-dir=. -std=gnu11 -mcpu=v3 -ffreestanding -target bpf -Wall -Wextra -Werror
      -I${PROJECT_SOURCE_DIR} -I/usr/include/${CMAKE_LIBRARY_ARCHITECTURE} -MD -MF ${object}.d -MT ${skeleton}
      -c ${CMAKE_CURRENT_SOURCE_DIR}/${name}.bpf.c -o ${object}
    COMMAND ${NETSUM_BPFTOOL} gen skeleton ${object} name ${name}_bpf > ${skeleton}
    DEPENDS ${name}.bpf.c DEPFILE ${object}.d
    COMMENT "Compiling ${folder}/${name}.bpf.c" VERBATIM)
  set(${variable} ${skeleton} PARENT_SCOPE)
endfunction()

function(netsum_bpf_includes target)
  target_include_directories(${target} SYSTEM PRIVATE ${PROJECT_BINARY_DIR}/generated)
endfunction()
