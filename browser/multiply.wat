;; multiply() of engine.js with SIMD: out = (matrix x) * scale, a scale for each row, for int8 and for float32 weights.
;; All addresses are in bytes; columns must be a multiple of 16. Assembled into multiply.wasm, which the pages hold, by
;;     npx --package wabt@1.0.39 wat2wasm browser/multiply.wat --output browser/multiply.wasm
(module
  (import "engine" "memory" (memory 1))

  (func (export "int8")
    (param $out i32) (param $weight i32) (param $scale i32) (param $x i32) (param $rows i32) (param $columns i32)
    (local $out_end i32) (local $x_end i32) (local $at i32) (local $sixteen v128) (local $eight v128) (local $a v128) (local $b v128)
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
        (br_if $column (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 64))) (local.get $x_end))))
      (f32.store (local.get $out) (f32.mul (f32.load (local.get $scale)) (call $sum (f32x4.add (local.get $a) (local.get $b)))))
      (local.set $scale (i32.add (local.get $scale) (i32.const 4)))
      (br_if $row (i32.lt_u (local.tee $out (i32.add (local.get $out) (i32.const 4))) (local.get $out_end)))))

  (func (export "float32")
    (param $out i32) (param $weight i32) (param $scale i32) (param $x i32) (param $rows i32) (param $columns i32)
    (local $out_end i32) (local $x_end i32) (local $at i32) (local $a v128) (local $b v128)
    (local.set $out_end (i32.add (local.get $out) (i32.shl (local.get $rows) (i32.const 2))))
    (local.set $x_end (i32.add (local.get $x) (i32.shl (local.get $columns) (i32.const 2))))
    (loop $row
      (local.set $a (v128.const f32x4 0 0 0 0))
      (local.set $b (v128.const f32x4 0 0 0 0))
      (local.set $at (local.get $x))
      (loop $column
        (local.set $a (f32x4.add (local.get $a)
          (f32x4.mul (v128.load (local.get $at)) (v128.load (local.get $weight)))))
        (local.set $b (f32x4.add (local.get $b)
          (f32x4.mul (v128.load offset=16 (local.get $at)) (v128.load offset=16 (local.get $weight)))))
        (local.set $a (f32x4.add (local.get $a)
          (f32x4.mul (v128.load offset=32 (local.get $at)) (v128.load offset=32 (local.get $weight)))))
        (local.set $b (f32x4.add (local.get $b)
          (f32x4.mul (v128.load offset=48 (local.get $at)) (v128.load offset=48 (local.get $weight)))))
        (local.set $weight (i32.add (local.get $weight) (i32.const 64)))
        (br_if $column (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 64))) (local.get $x_end))))
      (f32.store (local.get $out) (f32.mul (f32.load (local.get $scale)) (call $sum (f32x4.add (local.get $a) (local.get $b)))))
      (local.set $scale (i32.add (local.get $scale) (i32.const 4)))
      (br_if $row (i32.lt_u (local.tee $out (i32.add (local.get $out) (i32.const 4))) (local.get $out_end)))))

  (func $sum (param $four v128) (result f32)
    (f32.add
      (f32.add (f32x4.extract_lane 0 (local.get $four)) (f32x4.extract_lane 1 (local.get $four)))
      (f32.add (f32x4.extract_lane 2 (local.get $four)) (f32x4.extract_lane 3 (local.get $four)))))
)
