// What the process does with memory that was freed.
#pragma once

namespace tessera::base {

// From now on it stays with the process, for every micro-batch and every step takes as much again: small blocks of CPU
// tensors with the thread that freed them (see kept_blocks.h), and up to 1 GiB at the end of glibc's heap, for what it
// gives back to the kernel comes as one page fault for 4 KiB. Nothing where the user has told glibc what to do
// (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, GLIBC_TUNABLES).
void keep_freed_memory();

// Gives back what is free now, and what the calling thread keeps: after something was freed of which nothing comes
// again.
void give_back_freed_memory();

}  // namespace tessera::base
