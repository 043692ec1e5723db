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
  static constexpr float kTanhTop = 10;         // beyond: 1 to the last bit
  static constexpr float kErfTop = 3.95f;
  static constexpr float kSiluTop = 120;  // beyond: silu(-x) underflows; likewise below
  static constexpr float kGeluTop = 14.5f, kGeluPole = 4, kGeluEdge = 1, kGeluCentre = 0.375f;
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
  static constexpr float kErf[] = {0.1283791668f,   -0.3761263498f,    0.1128371499f,  -0.02686050583f,
                                   0.005203852292f, -0.0008175557326f, 8.512739575e-5f};
  // log(erfc(1 + t)) for 1 + t from 0.9 to kErfTop
  static constexpr float kLogErfc[] = {-1.849605510f,  -2.638967508f,    -0.8431073507f,   -0.04156159745f,
                                       0.01004124321f, -0.002005293623f, 0.0002855926597f, -2.082848764e-5f};
  // e^(a^2/2) erfc(a / sqrt(2)) / 2 times a / min(a, 1/2) in a - middle for a from 0 to kGeluTop. Columns are pieces,
  // in the order of the last two bits of the exponent of a + 1 and the first of its mantissa: the one from 0 to 1/2 is
  // the seventh.
  static constexpr float kGeluMiddles[] = {1.48046875f, 2.498046875f, 3.9609375f, 6.0078125f,
                                           8.9453125f,  12.79785156f, 0.0f,       0.765625f};
  static constexpr float kGeluPieces[][8] = {{0.6145641803f, 0.7065499428f, 0.7545565963f, 0.7774013863f, 0.7882656427f,
                                              0.7930996416f, 0.4999999999f, 0.4556049704f},
                                             {0.1437144927f, 0.05468278756f, 0.01888011458f, 0.006339336092f,
                                              0.002076274188f, 0.0007346249968f, -0.3989422574f, 0.3330180659f},
                                             {-0.07693849192f, -0.02303458554f, -0.005936707182f, -0.001440411178f,
                                              -0.0003324801957f, -8.410838321e-5f, 0.2499990452f, -0.2147961526f},
                                             {0.03388895363f, 0.008160977781f, 0.001601971374f, 0.0002851188262f,
                                              4.681952786e-5f, 8.511900952e-6f, -0.1329655166f, 0.1116916404f},
                                             {-0.01309283318f, -0.002580547651f, -0.0003914480782f, -5.186107161e-5f,
                                              -6.092102140e-6f, -8.025637584e-7f, 0.06237908205f, -0.05021680798f},
                                             {0.004593752104f, 0.0007500701965f, 8.963096317e-5f, 8.893215781e-6f,
                                              7.582482437e-7f, 7.218731644e-8f, -0.02606663310f, 0.02021864364f},
                                             {-0.001552663477f, -0.0002103811168f, -2.096915450e-5f, -1.533866211e-6f,
                                              -1.009391659e-7f, -6.580156118e-9f, 0.009094001546f, -0.007557591489f},
                                             {0.0004566148418f, 5.415754478e-5f, 4.130422397e-6f, 2.470292859e-7f,
                                              1.138575101e-8f, 5.823212303e-10f, -0.001959988599f, 0.002723764431f}};
  // (Phi(x) - 1/2) / x + e^h / sqrt(2 pi) - 2 c in h = -x^2/2 for |x| <= kGeluEdge; c is 1 / sqrt(2 pi) rounded
  static constexpr float kSlope[] = {-5.565064573e-8f, 0.5319214112f,  0.2393410799f,
                                     0.07582886557f,   0.01794293635f, 0.002766348810f};
  // e^(a^2/2) erfc(a / sqrt(2)) / 2 in a / (a + kGeluPole) - kGeluCentre for a from kGeluEdge to kGeluTop
  static constexpr float kSlopeTail[] = {0.1460331648f, -0.4962581010f, 0.7643100185f,   -0.8635600254f,
                                         0.6647105314f, -0.2637028351f, -0.04991706637f, 0.08663878778f};
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
  static constexpr double kGeluTop = 38.6, kGeluPole = 4, kGeluEdge = 1, kGeluCentre = 0.421875;
  // (Phi(x) - 1/2) / x - c, as kSlope
  static constexpr double kPhi[] = {-2.652232621210683749e-17, 0.1329807601338106419,   0.03989422804013127082,
                                    0.009498625723573761848,   0.001846954998442045262, 0.0003022289736204909499,
                                    0.00004262190356066971233, 5.276563500433817909e-6, 5.810333784775315248e-7,
                                    5.647945298311444672e-8,   4.107793252929456465e-9};
  // a e^(a^2/2) erfc(a / sqrt(2)) / 2 - c, as kSlopeTail
  static constexpr double kGeluTail[] = {-0.03593202693484238567, 0.2331572531585700441,   -0.6707673154007229829,
                                         1.172564641066470391,    -1.369072489502916778,   0.9897765481110259750,
                                         -0.2492954145947213512,  -0.2578890891796579346,  0.2093616354152772050,
                                         0.07164152673851358257,  -0.1180371538492395153,  -0.03582752539553958496,
                                         0.06650525938867299286,  0.03150101570633797549,  -0.03527595263538427261,
                                         -0.03149846749393528051, 0.01199649597220201115,  0.03245018989318983799,
                                         0.003002165970522692574, -0.04032428194784863248, 0.02010519520539026249};
  static constexpr double kGeluTanhTop = 22;
  static constexpr double kGeluTanhA = 0x1.9884533d43651p+0, kGeluTanhALow = -9.96930880911e-17;
  static constexpr double kGeluTanhB = 0x1.2444f2a4d8b4bp-4, kGeluTanhBLow = -6.17514991816e-19;

  static constexpr double kExp[] = {0.5000000000000010720,     0.1666666666666641024,   0.04166666666652919309,
                                    0.008333333333495626749,   0.001388888894392145402, 0.0001984126950475163725,
                                    0.00002480149276397395539, 2.755758735753165398e-6, 2.763037822818674268e-7,
                                    2.499996020833641821e-8};
  static constexpr double kLog[] = {0.6666666666666734618, 0.3999999999941314377, 0.2857142874276373712,
                                    0.2222219853128603235, 0.1818356666432891278, 0.1531398684114289652,
                                    0.1479662425967732328};
  static constexpr double kTanh[] = {-0.3333333333333332502,    0.1333333333333175607,      -0.05396825396720840429,
                                     0.02186948850132979471,    -0.008863234848556432869,   0.003592119523544419730,
                                     -0.001455763152834554370,  0.0005896181047411537777,   -0.0002375008126016977432,
                                     0.00009246771453724086504, -0.00003115594879810591408, 6.493048481428799233e-6};
  static constexpr double kErf[] = {0.1283791670955125732,    -0.3761263890318372798,     0.1128379167095370234,
                                    -0.02686617064480628579,  0.005223977621599573953,    -0.0008548326754697968525,
                                    0.0001205532103380562684, -0.00001492529953603239433, 1.645521076900856702e-6,
                                    -1.627544565218941142e-7, 1.404588186540897720e-8,    -8.481462767991445977e-10};
  static constexpr double kLogErfc[] = {
      -1.849605509933248235,      -2.638967514234790876,     -0.8431072563584983755,   -0.04156109804661177308,
      0.01003382543671955668,     -0.001977903026710980747,  0.0002373246046638482686, 0.00002627128488336338266,
      -0.00002714479259530567055, 9.586492150321144279e-6,   -2.034059585347503104e-6, 1.210301133227845354e-7,
      1.113186959058835192e-7,    -5.844181322001301216e-8,  1.707370296643569653e-8,  -3.378308897664307833e-9,
      4.497555871403430799e-10,   -3.652798695222902027e-11, 1.368122449688684082e-12};
  static constexpr double kSlope[] = {-8.313643768564710736e-17, 0.5319230405352382785,     0.2393653682406030687,
                                      0.07598900578490319580,    0.01846954994364057924,    0.003626747411077807111,
                                      0.0005967055063039965118,  0.00008442197862995236977, 0.00001045364856405193918,
                                      1.125066820656030187e-6,   8.860095561822393364e-8};
  static constexpr double kSlopeTail[] = {
      0.1243646238728134253,    -0.4300294589484709576,   0.6513619131373409639,     -0.7447652764635425333,
      0.6014823299537788572,    -0.2753435634997764298,   -0.01927478879065981130,   0.1050681111767862542,
      -0.02450141141070616061,  -0.04144482237407770516,  0.01534600494058822967,    0.02129716259903048386,
      -0.006450373392346327556, -0.01333605412812796928,  0.0006371672123593920110,  0.009003133413268844139,
      0.002763301137054257397,  -0.007190903534509759365, -0.0007952369660278046681, 0.002506409616689072625};
};

}  // namespace
}  // namespace tessera::kernels
