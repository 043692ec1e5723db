// What tests of whole programs include, compiled once.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "cmake/pch.h"
