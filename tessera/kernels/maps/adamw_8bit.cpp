#include "tessera/kernels/maps/adamw_8bit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "tessera/kernels/base/parallel.h"
#include "tessera/kernels/base/table.h"
#include "tessera/kernels/maps/fold_adamw.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kBlockGrain = 32;

CodeValues make_values(bool has_negatives) {
  constexpr double kPowers[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  std::vector<float> values = {0, 1};
  for (int i = 0; i < 7; ++i) {
    const int steps = 1 << (has_negatives ? i : i + 1);
    for (int k = 0; k < steps; ++k) {
      const double middle = kPowers[i] * (0.1 + 0.9 * (k + 0.5) / steps);
      values.push_back(static_cast<float>(middle));
      if (has_negatives) {
        values.push_back(static_cast<float>(-middle));
      }
    }
  }
  std::sort(values.begin(), values.end());
  CodeValues result;
  TESSERA_ASSERT(values.size() == result.size(), values.size(), " values of codes");
  std::copy(values.begin(), values.end(), result.begin());
  return result;
}

// Finds nearest codes: the upper half of a number's bits says where to begin, a few steps up end there.
class Coder {
 public:
  explicit Coder(bool has_negatives) : values_(make_values(has_negatives)) {
    for (size_t i = 0; i + 1 < values_.size(); ++i) {
      middles_[i] = static_cast<float>((static_cast<double>(values_[i]) + values_[i + 1]) / 2);
    }
    middles_.back() = INFINITY;
    for (uint32_t top = 0; top < first_.size(); ++top) {
      const bool is_negative = top >> 15 != 0;  // then the least number with these bits has all others set
      const float least = std::bit_cast<float>(top << 16 | (is_negative ? 0xFFFF : 0));
      first_[top] = std::isnan(least) ? 255 : code_from(0, least);
    }
  }

  const CodeValues& values() const { return values_; }

  uint8_t code_of(float value) const { return code_from(first_[std::bit_cast<uint32_t>(value) >> 16], value); }

 private:
  uint8_t code_from(uint8_t first, float value) const {
    while (value > middles_[first]) {
      ++first;
    }
    return first;
  }

  CodeValues values_;
  std::array<float, 256> middles_ = {};  // between a code's value and the next one's
  std::array<uint8_t, 65536> first_ = {};
};

const Coder& signed_coder() {
  static const Coder coder(true);
  return coder;
}

const Coder& unsigned_coder() {
  static const Coder coder(false);
  return coder;
}

void read(const Coder& coder, int64_t n, const uint8_t* codes, float scale, float* values) {
  for (int64_t i = 0; i < n; ++i) {
    values[i] = coder.values()[codes[i]] * scale;
  }
}

// The largest magnitude; NaN if there is one.
float scale_of(int64_t n, const float* values) {
  float most = 0;
  bool has_nan = false;
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(values[i]);
    has_nan |= magnitude != magnitude;
    most = magnitude > most ? magnitude : most;
  }
  return has_nan ? NAN : most;
}

// `least` is the code of the smallest value that is not zero, where there are no negatives; 0 where there are.
float keep(const Coder& coder, uint8_t least, int64_t n, const float* values, uint8_t* codes) {
  const float scale = scale_of(n, values);
  const float divisor = scale > 0 ? scale : 1;
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t code = coder.code_of(values[i] / divisor);
    codes[i] = code < least && values[i] > 0 ? least : code;
  }
  return scale;
}

}  // namespace

const CodeValues& signed_code_values() { return signed_coder().values(); }
const CodeValues& unsigned_code_values() { return unsigned_coder().values(); }

void adamw_8bit_step(const AdamW& options, int64_t rows, int64_t columns, float* parameter, const float* grad,
                     Moment8bit average, Moment8bit square) {
  const auto run = table<float>().adamw;
  const AdamWFactors<float> factors = fold_adamw<float>(options);
  const int64_t blocks = moment_blocks(columns);
  const Coder &of_average = signed_coder(), &of_square = unsigned_coder();
  parallel_for(rows * blocks, kBlockGrain, [&](int64_t begin, int64_t end) {
    float m[kMomentBlock], v[kMomentBlock];
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block % blocks * kMomentBlock, n = std::min(kMomentBlock, columns - first);
      const int64_t at = block / blocks * columns + first;
      read(of_average, n, average.codes + at, average.scales[block], m);
      read(of_square, n, square.codes + at, square.scales[block], v);
      run(n, factors, parameter + at, grad + at, m, v, nullptr);
      average.scales[block] = keep(of_average, 0, n, m, average.codes + at);
      square.scales[block] = keep(of_square, 1, n, v, square.codes + at);
    }
  });
}

}  // namespace tessera::kernels
