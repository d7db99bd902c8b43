// Exact numbers of any size: times, rates and weights of plans are compared as fractions, never as doubles.
#ifndef NETSUM_SRC_PLAN_FRACTION_H_
#define NETSUM_SRC_PLAN_FRACTION_H_

#include <boost/multiprecision/cpp_int.hpp>
#include <string>
#include <utility>

namespace netsum::plan {

using Integer = boost::multiprecision::cpp_int;
using Wide = __int128;

// cpp_int of Boost 1.74 takes no __int128 in every standard mode.
inline Integer integer(Wide value) {
  return (Integer(static_cast<int64_t>(value >> 62)) << 62) +
         Integer(static_cast<int64_t>(value & ((Wide{1} << 62) - 1)));
}

// Always in lowest terms, with a denominator above 0. (boost::rational of 1.74 compares with integers by endless
// recursion in C++20.)
class Fraction {
 public:
  Fraction() = default;
  Fraction(Integer whole) : over_(std::move(whole)) {}  // NOLINT(google-explicit-constructor)
  Fraction(int64_t whole) : over_(whole) {}             // NOLINT(google-explicit-constructor)
  // `under` must not be 0.
  Fraction(Integer over, Integer under) : over_(std::move(over)), under_(std::move(under)) {
    const Integer common = gcd(over_, under_) * (under_ < 0 ? -1 : 1);
    over_ /= common;
    under_ /= common;
  }

  const Integer& over() const { return over_; }
  const Integer& under() const { return under_; }
  double to_double() const {
    // Both are cut to 1000 bits, because a double ends at 2^1024.
    const unsigned longer = std::max(bits(over_), bits(under_));
    const unsigned cut = longer > 1000 ? longer - 1000 : 0;
    return Integer(over_ >> cut).convert_to<double>() / Integer(under_ >> cut).convert_to<double>();
  }
  // "7/4", or "2".
  std::string text() const { return under_ == 1 ? over_.str() : over_.str() + "/" + under_.str(); }

  friend Fraction operator+(const Fraction& a, const Fraction& b) {
    return {a.over_ * b.under_ + b.over_ * a.under_, a.under_ * b.under_};
  }
  friend Fraction operator-(const Fraction& a, const Fraction& b) {
    return {a.over_ * b.under_ - b.over_ * a.under_, a.under_ * b.under_};
  }
  friend Fraction operator*(const Fraction& a, const Fraction& b) {
    return {a.over_ * b.over_, a.under_ * b.under_};
  }
  // `b` must not be 0.
  friend Fraction operator/(const Fraction& a, const Fraction& b) {
    return {a.over_ * b.under_, a.under_ * b.over_};
  }
  friend bool operator==(const Fraction& a, const Fraction& b) {
    return a.over_ == b.over_ && a.under_ == b.under_;
  }
  friend bool operator<(const Fraction& a, const Fraction& b) {
    return a.over_ * b.under_ < b.over_ * a.under_;
  }
  friend bool operator>(const Fraction& a, const Fraction& b) { return b < a; }
  friend bool operator<=(const Fraction& a, const Fraction& b) { return !(b < a); }
  friend bool operator>=(const Fraction& a, const Fraction& b) { return !(a < b); }
  friend std::ostream& operator<<(std::ostream& out, const Fraction& a) { return out << a.text(); }

 private:
  static unsigned bits(const Integer& value) {
    return value == 0 ? 0 : static_cast<unsigned>(msb(abs(value))) + 1;
  }

  Integer over_ = 0;
  Integer under_ = 1;
};

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_FRACTION_H_
