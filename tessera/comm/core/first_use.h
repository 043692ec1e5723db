// What libraries below libtorch decide at their first use, and must not decide on two threads at once.
#pragma once

namespace tessera::comm {

// Note [First use]. MKL's vector functions, which libtorch calls for `sqrt`, `exp`, `tanh` and others of float32 and
// float64, ask at their first call which processor this is, and store the answer before they translate it into the
// number that they choose code by. A second thread that calls one in that moment runs the code of another processor,
// once: `sqrt` of a float64 is then wrong from the eleventh digit on (in 8 of 300 processes whose 8 threads begin
// together). Rank threads do their first calls together, and so do the threads of one rank in a large loop.

// The first use, on one thread, once a process; others wait for it. RankScope calls it for every rank.
void settle_first_use();

}  // namespace tessera::comm
