#include "tessera/train/run/report.h"

#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/train/run/trainer.h"

namespace tessera::train::report_test {
namespace {

const StepRecord kRecord{
    .step = 20,
    .loss = 3.1234000000000002,
    .grad_norm = 0.1,
    .lr = 1e-3,
    .tokens = 2048,
    .ms = 512,
    .peak_bytes = 214748365,
};

TEST(Report, ProgressLine) {
  EXPECT_EQ(
      progress_line({.step = 20, .loss = 3.12341, .grad_norm = 0.978, .peak_bytes = 214748365}, 400, {1234.4, 1e7, 80}),
      "step 20/400  loss 3.1234  grad_norm 0.98  mem 0.2GiB  tps 1,234  tflops 0.0123  left 1m20s");
}

// Llama 3 8B without its embedding, at 8,192 positions.
TEST(Report, FlopsOfAToken) {
  EXPECT_DOUBLE_EQ(training_flops_per_token(7504924672, 32, 4096, 8192), 6 * 7504924672.0 + 12 * 32.0 * 4096 * 8192);
}

TEST(Report, MetricsLineIsOneObjectWithAllDigits) {
  const auto line = metrics_line(kRecord);
  EXPECT_EQ(line,
            "{\"step\": 20, \"loss\": 3.1234000000000002, \"grad_norm\": 0.10000000000000001, \"lr\": 0.001, "
            "\"tokens\": 2048, "
            "\"ms\": 512.000, \"tokens_per_s\": 4000.0, \"peak_bytes\": 214748365}");
  const auto parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed.at("loss").get<double>(), kRecord.loss);
  EXPECT_EQ(parsed.at("grad_norm").get<double>(), kRecord.grad_norm);
  EXPECT_EQ(parsed.size(), 8u);
}

TEST(Report, EvalLine) {
  EXPECT_EQ(eval_line({.step = 400, .loss = std::log(4.0), .unigram = 3, .tokens = 214912}),
            "held out after 400 steps  loss 1.3863  bits/byte 2.000  unigram 3.0000 (1.614 below)  over 214,912 bytes");
  EXPECT_NE(eval_line({.step = 1, .loss = 5, .unigram = 3, .tokens = 1}).find("(2.000 above)"), std::string::npos);
}

TEST(Report, ProofLine) {
  Proof proof{.steps = 20, .ranks = 4, .mesh = "dp=2,tp=2", .difference = 3.1e-7, .tolerance = 1e-5};
  EXPECT_TRUE(proof.holds());
  EXPECT_EQ(proof_line(proof),
            "proof: first 20 steps on 1 rank and on 4 (dp=2,tp=2): largest relative difference of the loss 3.1e-07 "
            "(<= 1e-05): same training");
  proof.difference = 2e-5;
  EXPECT_FALSE(proof.holds());
  EXPECT_NE(proof_line(proof).find("2.0e-05 (> 1e-05): NOT the same training"), std::string::npos);
  proof.difference = std::nan("");
  EXPECT_FALSE(proof.holds());

  Proof exact{.steps = 20, .ranks = 2, .mesh = "tp=2", .is_exact = true};
  EXPECT_EQ(proof_line(exact),
            "proof: first 20 steps on 1 rank and on 2 (tp=2): largest relative difference of the loss 0.0e+00 "
            "(numerics exact): same bits");
  exact.difference = 1e-16;
  EXPECT_FALSE(exact.holds());
  EXPECT_NE(proof_line(exact).find("NOT the same bits"), std::string::npos);
}

TEST(Report, Numbers) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(-1234567), "-1,234,567");
  EXPECT_EQ(short_duration(-1), "0s");
  EXPECT_EQ(short_duration(59.4), "59s");
  EXPECT_EQ(short_duration(80), "1m20s");
  EXPECT_EQ(short_duration(7500), "2h05m");
  EXPECT_GT(peak_resident_bytes(), 1 << 20);
}

}  // namespace
}  // namespace tessera::train::report_test
