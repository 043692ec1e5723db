// Memory and other things that are needed and dropped all the time.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace tessera::base {

// Up to kMost values that the thread dropped, for it to take again. A value may come from any thread. `Value()` must
// be nothing, as a null pointer is.
template <typename Value, size_t kMost = 64>
class Spares {
 public:
  // `Value()` where none is left.
  static Value take() {
    Room& room = room_of_thread();
    if (room.count == 0) {
      return Value();
    }
    Value* last = room.values() + --room.count;
    Value value = std::move(*last);
    std::destroy_at(last);
    return value;
  }

  // Of more than kMost, and of what is dropped while the thread ends, nothing is kept.
  static void keep(Value value) {
    Room& room = room_of_thread();
    if (room.count < kMost && is_open(room)) {
      new (room.values() + room.count++) Value(std::move(value));
    }
  }

 private:
  // Trivial, so that reaching it asks for no constructor.
  struct Room {
    alignas(Value) std::byte memory[kMost * sizeof(Value)];
    size_t count;
    bool is_open, is_closed;

    Value* values() { return reinterpret_cast<Value*>(memory); }
  };
  // Gives the values back when the thread ends.
  struct Closer {
    ~Closer() {
      Room& room = room_of_thread();
      room.is_closed = true;
      std::destroy_n(room.values(), std::exchange(room.count, 0));
    }
  };

  static Room& room_of_thread() {
    static thread_local Room room;
    Room* place = &room;
    asm("" : "+r"(place));  // else the compiler asks for the thread's address at each use: a call in a shared library
    return *place;
  }
  static bool is_open(Room& room) {
    if (!room.is_open) {
      static thread_local Closer closer;
      (void)&closer;
      room.is_open = true;
    }
    return !room.is_closed;
  }
};

// The memory of a dropped object of a type that derives from Pooled<itself> is kept for the thread's next ones. Objects
// of types derived from it in turn, of other sizes, are not kept.
template <typename Object>
class Pooled {
 public:
  static void* operator new(size_t size) {
    void* kept = size == sizeof(Object) ? Spares<Memory>::take().release() : nullptr;
    return kept ? kept : ::operator new(size);
  }
  static void* operator new(size_t, void* place) noexcept { return place; }

  static void operator delete(void* object, size_t size) noexcept {
    Memory memory(object);
    if (size == sizeof(Object)) {
      Spares<Memory>::keep(std::move(memory));
    }
  }

 private:
  struct GiveBack {
    void operator()(void* memory) const { ::operator delete(memory); }
  };
  using Memory = std::unique_ptr<void, GiveBack>;
};

}  // namespace tessera::base
