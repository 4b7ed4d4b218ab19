#include "textflag.h"

// ROW adds a number of row at of x, times a row of the root in Y8 and Y9, to s0 and s1.
#define ROW(at, s0, s1) \
	VBROADCASTSD (at)(CX*8), Y10 \
	VMULPD Y8, Y10, Y11 \
	VMULPD Y9, Y10, Y12 \
	VADDPD Y11, s0, s0 \
	VADDPD Y12, s1, s1

// func applyEight(dst, x, root *float64, d, from int)
TEXT ·applyEight(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), R8
	MOVQ root+16(FP), DX
	MOVQ d+24(FP), R13
	MOVQ from+32(FP), AX
	MOVQ R13, SI
	SHLQ $3, SI // bytes of a row
	LEAQ (DI)(AX*8), DI
	LEAQ (DX)(AX*8), DX
	LEAQ (R8)(SI*1), R9
	LEAQ (R9)(SI*1), R10
	LEAQ (R10)(SI*1), R11
	VXORPD Y0, Y0, Y0
	VXORPD Y1, Y1, Y1
	VXORPD Y2, Y2, Y2
	VXORPD Y3, Y3, Y3
	VXORPD Y4, Y4, Y4
	VXORPD Y5, Y5, Y5
	VXORPD Y6, Y6, Y6
	VXORPD Y7, Y7, Y7
	XORQ CX, CX

row:
	VMOVUPD (DX), Y8
	VMOVUPD 32(DX), Y9
	ROW(R8, Y0, Y1)
	ROW(R9, Y2, Y3)
	ROW(R10, Y4, Y5)
	ROW(R11, Y6, Y7)
	ADDQ SI, DX
	INCQ CX
	CMPQ CX, R13
	JLT row

	VMOVUPD Y0, (DI)
	VMOVUPD Y1, 32(DI)
	ADDQ SI, DI
	VMOVUPD Y2, (DI)
	VMOVUPD Y3, 32(DI)
	ADDQ SI, DI
	VMOVUPD Y4, (DI)
	VMOVUPD Y5, 32(DI)
	ADDQ SI, DI
	VMOVUPD Y6, (DI)
	VMOVUPD Y7, 32(DI)
	VZEROUPPER
	RET
