;; out = (matrix x) * scale, for a matrix of int8 with a float32 scale for each row: where engine.js
;; spends its time. Addresses are in bytes; columns must be a multiple of 16. multiply.wasm is this
;; file, assembled by any assembler; a test compares them:
;;     wat2wasm nanostories/pages/multiply.wat --output nanostories/pages/multiply.wasm
(module
  (import "engine" "memory" (memory 1))
  (func (export "multiply")
    (param $out i32) (param $weight i32) (param $scale i32) (param $x i32)
    (param $rows i32) (param $columns i32)
    (local $out_end i32) (local $x_end i32) (local $at i32)
    (local $sixteen v128) (local $eight v128) (local $a v128) (local $b v128)
    (local.set $out_end (i32.add (local.get $out) (i32.shl (local.get $rows) (i32.const 2))))
    (local.set $x_end (i32.add (local.get $x) (i32.shl (local.get $columns) (i32.const 2))))
    (loop $row
      (local.set $a (v128.const f32x4 0 0 0 0))
      (local.set $b (v128.const f32x4 0 0 0 0))
      (local.set $at (local.get $x))
      (loop $column  ;; sixteen weights, widened to float32 four by four
        (local.set $sixteen (v128.load align=1 (local.get $weight)))
        (local.set $eight (i16x8.extend_low_i8x16_s (local.get $sixteen)))
        (local.set $a (f32x4.add (local.get $a) (f32x4.mul (v128.load (local.get $at))
          (f32x4.convert_i32x4_s (i32x4.extend_low_i16x8_s (local.get $eight))))))
        (local.set $b (f32x4.add (local.get $b) (f32x4.mul (v128.load offset=16 (local.get $at))
          (f32x4.convert_i32x4_s (i32x4.extend_high_i16x8_s (local.get $eight))))))
        (local.set $eight (i16x8.extend_high_i8x16_s (local.get $sixteen)))
        (local.set $a (f32x4.add (local.get $a) (f32x4.mul (v128.load offset=32 (local.get $at))
          (f32x4.convert_i32x4_s (i32x4.extend_low_i16x8_s (local.get $eight))))))
        (local.set $b (f32x4.add (local.get $b) (f32x4.mul (v128.load offset=48 (local.get $at))
          (f32x4.convert_i32x4_s (i32x4.extend_high_i16x8_s (local.get $eight))))))
        (local.set $weight (i32.add (local.get $weight) (i32.const 16)))
        (local.set $at (i32.add (local.get $at) (i32.const 64)))
        (br_if $column (i32.lt_u (local.get $at) (local.get $x_end))))
      (local.set $a (f32x4.add (local.get $a) (local.get $b)))
      (f32.store (local.get $out) (f32.mul (f32.load (local.get $scale)) (f32.add
        (f32.add (f32x4.extract_lane 0 (local.get $a)) (f32x4.extract_lane 1 (local.get $a)))
        (f32.add (f32x4.extract_lane 2 (local.get $a)) (f32x4.extract_lane 3 (local.get $a))))))
      (local.set $scale (i32.add (local.get $scale) (i32.const 4)))
      (local.set $out (i32.add (local.get $out) (i32.const 4)))
      (br_if $row (i32.lt_u (local.get $out) (local.get $out_end)))))
)
