// A running average of parameters.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::optim {

// Keeps for each parameter average = decay average + (1 - decay) parameter, of the parameter's own layout: its start is
// the parameter as it is now, which is placed already. An update is one call with the same bits on every layout in both
// numerics; float32 and float64. On the parameters' thread.
//
//     optim::Ema ema(model->parameters(), 0.999);
//     ... optimizer.step(); ema.update();
//     { const optim::Ema::Applied averages(ema); evaluate(); tessera::save("runs/ema", job); }
class Ema {
 public:
  // Throws for a decay outside of [0, 1].
  explicit Ema(std::vector<at::Tensor> parameters, double decay = 0.999);

  // After each step of the optimizer. No communication.
  void update();

  // Exchanges the values of the parameters and their averages, in place.
  void swap();

  double decay() const { return decay_; }
  // In the order of the parameters.
  const std::vector<at::Tensor>& averages() const { return averages_; }

  // While it lives the parameters have the values of their averages; then they have their own again, and what was
  // written to them meanwhile (a load) is the averages'. No update may come in between.
  class Applied {
   public:
    explicit Applied(Ema& ema) : ema_(ema) { ema_.swap(); }
    ~Applied();
    Applied(const Applied&) = delete;
    Applied& operator=(const Applied&) = delete;

   private:
    Ema& ema_;
  };

 private:
  std::vector<at::Tensor> parameters_, averages_;
  double decay_;
  bool is_swapped_ = false;
};

}  // namespace tessera::optim
