// Memory for objects that are made and dropped all the time.
#pragma once

#include <cstddef>
#include <new>

namespace tessera::base {

// A type that derives from Pooled<itself> keeps the memory of its dropped objects, up to kMost on each thread, for the
// next ones. Objects of types derived from it in turn, of other sizes, are not kept. Objects may be dropped on other
// threads than made them.
template <typename Object, size_t kMost = 64>
class Pooled {
 public:
  static void* operator new(size_t size) {
    Free& free = blocks();
    if (size != sizeof(Object) || !free.first) {
      return ::operator new(size);
    }
    Block* block = free.first;
    free.first = block->next;
    --free.count;
    return block;
  }
  static void* operator new(size_t, void* place) noexcept { return place; }

  static void operator delete(void* object, size_t size) noexcept {
    Free& free = blocks();
    if (size != sizeof(Object) || free.count >= kMost || !is_open(free)) {
      return ::operator delete(object);
    }
    free.first = new (object) Block{free.first};
    ++free.count;
  }

 private:
  struct Block {
    Block* next;
  };
  // Trivial, so that reaching it asks for no constructor.
  struct Free {
    Block* first;
    size_t count;
    bool is_open, is_closed;
  };
  // Gives the blocks back when the thread ends; what is dropped after that is not kept.
  struct Closer {
    ~Closer() {
      Free& free = blocks();
      free.is_closed = true;
      while (Block* block = free.first) {
        free.first = block->next;
        ::operator delete(block);
      }
    }
  };

  static Free& blocks() {
    static thread_local Free free;
    return free;
  }
  static bool is_open(Free& free) {
    if (!free.is_open) {
      static thread_local Closer closer;
      (void)&closer;
      free.is_open = true;
    }
    return !free.is_closed;
  }
};

}  // namespace tessera::base
