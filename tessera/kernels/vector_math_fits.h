// Constants of vector_math.h. Polynomials from the constant term up; tools/fit_polynomials.py makes them.
#pragma once

namespace tessera::kernels {
namespace {

template <typename T>
struct Fits;

template <>
struct Fits<float> {
  static constexpr float kExpTop = 89, kExpBottom = -104;  // beyond: infinity and zero
  static constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr float kSmallestNormal = 0x1p-126f, kDenormalScale = 0x1p25f, kDenormalShift = 25;
  static constexpr int kSqrtHalf = 0x3f3504f3;  // bits of sqrt(1/2)
  static constexpr float kTanhTop = 10;          // beyond: 1 to the last bit
  static constexpr float kErfTop = 3.95f;
  static constexpr float kSiluTop = 120;         // beyond: silu(-x) underflows; likewise below
  static constexpr float kGeluTop = 14.5f, kGeluPole = 3.75f;
  static constexpr float kGeluTanhTop = 11.5f;
  // 2 sqrt(2/pi) and 0.044715 of it, in two parts.
  static constexpr float kGeluTanhA = 0x1.988454p+0f, kGeluTanhALow = -4.53406804e-8f;
  static constexpr float kGeluTanhB = 0x1.2444f2p-4f, kGeluTanhBLow = 2.398832396e-9f;

  // (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2
  static constexpr float kExp[] = {0.4999999341f, 0.1666652010f, 0.04166839415f, 0.008368780690f, 0.001381447122f};
  // (log((1 + s) / (1 - s)) / s - 2) / z for z = s^2 <= 0.0295
  static constexpr float kLog[] = {0.6666677653f, 0.3997752170f, 0.2987230943f};
  // (tanh(x) / x - 1) / z for z = x^2 <= 0.36
  static constexpr float kTanh[] = {-0.3333329796f, 0.1333192270f, -0.05378369449f, 0.02079546825f, -0.005894522199f};
  // erf(x) / x - 1 in z = x^2 <= 0.81
  static constexpr float kErf[] = {0.1283791668f,    -0.3761263498f,    0.1128371499f, -0.02686050583f,
                                   0.005203852292f, -0.0008175557326f, 8.512739575e-5f};
  // log(erfc(1 + t)) for 1 + t from 0.9 to kErfTop
  static constexpr float kLogErfc[] = {
      -1.849605510f, -2.638967508f, -0.8431073507f, -0.04156159745f, 0.01004124321f,
      -0.002005293623f, 0.0002855926597f, -2.082848764e-5f};
  // (a + kGeluPole) e^(a^2/2) erfc(a / sqrt(2)) / 2 in t = (a - kGeluPole) / (a + kGeluPole)
  static constexpr float kTail[] = {
      0.7502940723f, -0.5881884112f, 0.3529398527f, -0.1515171131f, 0.03748940901f,
      0.001170973850f, -0.004162867115f, 0.0005983522914f, 0.0004663488047f, -9.444538725e-5f,
      -5.746037373e-5f};
};

template <>
struct Fits<double> {
  static constexpr double kExpTop = 710, kExpBottom = -746;
  static constexpr double kLn2High = 0x1.62e42fefap-1, kLn2Low = 0x1.cf79abc9e3b3ap-40;
  static constexpr double kSmallestNormal = 0x1p-1022, kDenormalScale = 0x1p54, kDenormalShift = 54;
  static constexpr long kSqrtHalf = 0x3fe6a09e667f3bcd;
  static constexpr double kTanhTop = 20;
  static constexpr double kErfTop = 5.95;
  static constexpr double kSiluTop = 770;
  static constexpr double kGeluTop = 38.6, kGeluPole = 3.75;
  static constexpr double kGeluTanhTop = 22;
  static constexpr double kGeluTanhA = 0x1.9884533d43651p+0, kGeluTanhALow = -9.96930880911e-17;
  static constexpr double kGeluTanhB = 0x1.2444f2a4d8b4bp-4, kGeluTanhBLow = -6.17514991816e-19;

  static constexpr double kExp[] = {0.5000000000000010720,    0.1666666666666641024,    0.04166666666652919309,
                                    0.008333333333495626749,  0.001388888894392145402,  0.0001984126950475163725,
                                    0.00002480149276397395539, 2.755758735753165398e-6, 2.763037822818674268e-7,
                                    2.499996020833641821e-8};
  static constexpr double kLog[] = {0.6666666666666734618, 0.3999999999941314377, 0.2857142874276373712,
                                    0.2222219853128603235, 0.1818356666432891278, 0.1531398684114289652,
                                    0.1479662425967732328};
  static constexpr double kTanh[] = {-0.3333333333333332502,   0.1333333333333175607,     -0.05396825396720840429,
                                     0.02186948850132979471,   -0.008863234848556432869,  0.003592119523544419730,
                                     -0.001455763152834554370, 0.0005896181047411537777,  -0.0002375008126016977432,
                                     0.00009246771453724086504, -0.00003115594879810591408, 6.493048481428799233e-6};
  static constexpr double kErf[] = {0.1283791670955125732,    -0.3761263890318372798,   0.1128379167095370234,
                                    -0.02686617064480628579,  0.005223977621599573953,  -0.0008548326754697968525,
                                    0.0001205532103380562684, -0.00001492529953603239433, 1.645521076900856702e-6,
                                    -1.627544565218941142e-7, 1.404588186540897720e-8,  -8.481462767991445977e-10};
  static constexpr double kLogErfc[] = {
      -1.849605509933248235, -2.638967514234790876, -0.8431072563584983755, -0.04156109804661177308,
      0.01003382543671955668, -0.001977903026710980747, 0.0002373246046638482686, 0.00002627128488336338266,
      -0.00002714479259530567055, 9.586492150321144279e-6, -2.034059585347503104e-6, 1.210301133227845354e-7,
      1.113186959058835192e-7, -5.844181322001301216e-8, 1.707370296643569653e-8, -3.378308897664307833e-9,
      4.497555871403430799e-10, -3.652798695222902027e-11, 1.368122449688684082e-12};
  static constexpr double kTail[] = {
      0.7502940722658990337, -0.5881884178362787972, 0.3529398574780780000, -0.1515168654268497554,
      0.03748932541877252391, 0.001168351969158798037, -0.004162868254445077480, 0.0006099108968932247951,
      0.0004698238650379076650, -0.0001172102069899721037, -0.00007007595554775380996, 0.00001706681899981235871,
      0.00001330960637342225911, -1.645643354333008899e-6, -2.766109083237833002e-6, -1.656936827693863662e-7,
      5.341775237372975910e-7, 1.607035726925489214e-7, -7.613913446565533438e-8, -5.641216348469898683e-8,
      1.867210925439727068e-9, 1.243770832581617590e-8, 2.492949418926857025e-9, -1.406349650603283779e-9,
      -5.129703445766348213e-10};
};

}  // namespace
}  // namespace tessera::kernels
